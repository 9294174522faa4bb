"""One end of a transport under test, with a rank's inbox and slots, in this process or in another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Self

import msgspec

from rolemesh_dataplane.curve import new_keys
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.tcp_transport import TcpTransport
from rolemesh_dataplane.transports import Site, Transport, TransportKeys
from rolemesh_durable.api.testing import INLINE_BYTES, Arrived, Endpoint, Peer

__all__ = ["EDGE", "Distant", "Got", "Meeting", "Party"]

EDGE = 0
"""The edge of all values in these tests."""
PATIENCE_S = 30.0
"""Seconds after which a value counts as lost. Even a slow machine needs far less."""


class Got(msgspec.Struct, frozen=True):
    """An arrived value, with the data of its stamp."""

    source: int
    step: int
    value: Any


class Meeting(msgspec.Struct, frozen=True):
    """The common data of a test's parties: the class under test, folders with short names, and keys."""

    target: str
    options: dict[str, Any]
    folder: str
    keys: TransportKeys
    between_nodes: bool

    @classmethod
    def of(cls, target: str, options: dict[str, Any], between_nodes: bool) -> Self:
        """Return new common data with a new folder; `close` removes the folder."""
        return cls(target, options, tempfile.mkdtemp(prefix="rm-"), new_keys(), between_nodes)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def transport(self) -> Transport:
        """A new transport of the class under test."""
        found: type[Any] = EntryPoint("it", self.target, "rolemesh.transports").load()
        made: Transport = found(found.Options.model_validate(self.options))
        return made

    def site(self, rank: int, generation: int = 0) -> Site:
        """Return a rank's place. If `between_nodes` is true, each rank has its own node and shared memory."""
        node = f"n{rank}" if self.between_nodes else "n0"
        sockets, slots = Path(self.folder, f"s-{node}"), Path(self.folder, f"m-{node}")
        for folder in (sockets, slots):
            folder.mkdir(mode=0o700, exist_ok=True)
        return Site("party", rank, node, generation, "127.0.0.1", str(sockets), str(slots), self.keys)


class Party:
    """A rank's endpoint with the transport under test as its only one. It keeps all arrived values."""

    def __init__(self, meeting: Meeting, rank: int, generation: int = 0, *, beside: bool = False) -> None:
        """`beside`: the rank also has the transport `tcp`, and the one under test is for one edge only."""
        self.transport = meeting.transport()
        self.site = meeting.site(rank, generation)
        if beside:
            both = {"tcp": TcpTransport(None), "it": self.transport}
            self.endpoint = Endpoint(self.site, transports=both, local="tcp", remote="tcp")
            self.endpoint.assign({EDGE: ("it", "it")})
        else:
            self.endpoint = Endpoint(self.site, transports={"it": self.transport}, local="it", remote="it")
        self.got: list[Got] = []
        self.endpoint.register_consumer(EDGE, self)
        self._sent: dict[int, int] = {}

    @property
    def peer(self) -> Peer:
        """The party's address."""
        site = self.site
        return Peer(site.role, site.rank, site.node, self.endpoint.addresses, site.generation)

    def payload(self, value: Any) -> Payload:
        """Return a payload for `send`. Each send adds a user to it."""
        return Payload(value, self.endpoint.pool, INLINE_BYTES)

    def send(self, to: Peer, value: Any, *, payload: Payload | None = None) -> Payload:
        """Send a value. Its step is the number of earlier values for this peer."""
        payload = payload or self.payload(value)
        self.endpoint.connect([to])
        sender = self.endpoint.sender(to.role, to.rank, EDGE)
        step = self._sent.get(to.rank, 0)
        self._sent[to.rank] = step + 1
        stamp = (1, EDGE, self.site.rank, self.site.generation, step, 0)
        payload.users += 1
        if payload.slots:
            sender.send_payload(payload, stamp)
        else:
            sender.send(payload.frame(stamp))
        return payload

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Arrived | None) -> None:
        """Keep an arrived value in its decoded form."""
        self.got.append(Got(source, step, None if item is None else item.value()))

    def flush(self) -> None:
        """Do nothing: this party defers no work."""

    def wait_for(self, count: int, patience_s: float = PATIENCE_S) -> list[Got]:
        """Return all arrived values as soon as there are `count`. Raises `AssertionError` if they do not come."""
        deadline = time.monotonic() + patience_s
        while len(self.got) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(self.got)} of {count} values arrived within {patience_s:g} s"
            self.endpoint.pump(min(left, 0.05))
        return self.got

    def close(self, linger_ms: int = 500) -> None:
        """Close the endpoint and its transport."""
        self.endpoint.close(linger_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Distant:
    """A party in a process of its own. For each value it sends back the number of bytes."""

    def __init__(self, meeting: Meeting, rank: int, answer_to: Peer) -> None:
        told = msgspec.json.encode({"meeting": meeting, "rank": rank, "answer_to": answer_to, "path": sys.path})
        command = [sys.executable, "-c", _DISTANT]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(told + b"\n")
        self._process.stdin.flush()
        self.peer = msgspec.json.decode(self._process.stdout.readline(), type=Peer)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


_DISTANT = """
import json, sys
told = json.loads(sys.stdin.readline())
sys.path[:] = told["path"]
from rolemesh_testing.transports.party import live
live(told)
"""


def live(told: dict[str, Any]) -> None:
    """Run a `Distant` party until it is killed or its parent ends."""
    meeting, answer_to = msgspec.convert(told["meeting"], Meeting), msgspec.convert(told["answer_to"], Peer)
    parent = os.getppid()
    with Party(meeting, told["rank"]) as party:
        print(msgspec.json.encode(party.peer).decode(), flush=True)
        while os.getppid() == parent:
            party.endpoint.pump(0.2)
            while party.got:
                party.send(answer_to, len(party.got.pop(0).value))
