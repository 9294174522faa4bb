"""Leases of KV caches: which rank may fetch a prompt's cache, and until when. Imports neither vllm nor torch.

NIXL reads the memory at the given place, and nothing checks that the blocks still hold that prompt. A prefill engine
frees them when a decode engine has fetched them or their lease has ended, and reuses them for other prompts. A decode
rank that asks late, or again because it was killed and its inputs are replayed, would generate from another prompt's
cache without an error. So it first claims its tickets: each is valid once, and not near its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypedDict

import msgspec
import zmq

from rolemesh.runs.jsonl import UNDECODABLE

__all__ = ["LeaseOffice", "Ticket", "claim"]

ANSWER_S = 5.0
"""Seconds that a decode rank waits for a prefill rank's answer before it recomputes."""

QUESTION_BYTES = 1 << 20


class Ticket(TypedDict):
    """The data with which a decode rank fetches a prompt's KV cache: a row of the column `kv_transfer`."""

    office: str
    """Address of the prefill rank's `LeaseOffice`."""
    engine: str
    """Id of the engine that has the cache. It changes when the rank restarts."""
    request: str
    """Id of the prompt in the engine."""
    version: int
    """Version of the weights that made the cache."""
    params: dict[str, Any]
    """vLLM's ``kv_transfer_params``."""


class LeaseOffice:
    """A prefill rank's record of its leases, which answers claims in a thread of its own."""

    def __init__(self, host: str, engine: str, lease: float) -> None:
        """Listen on a free port of `host`. `lease` is in seconds, from the end of each prompt."""
        self._engine, self._lease = engine, lease
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, QUESTION_BYTES)
        self._socket.ipv6 = ":" in host
        address = f"tcp://[{host}]" if self._socket.ipv6 else f"tcp://{host}"
        self.address = f"{address}:{self._socket.bind_to_random_port(address)}"
        self._thread = threading.Thread(target=self._serve, name="leases", daemon=True)
        self._thread.start()

    def grant(self, request: str) -> None:
        """Record that the engine has just finished `request` and keeps its cache."""
        now = time.monotonic()
        with self._lock:
            for old in [name for name, until in self._until.items() if until < now]:
                del self._until[old]
            # A third of the lease is left for the first sign of life from the decode engine, which extends it.
            self._until[request] = now + self._lease * 2 / 3

    def claim(self, engine: str, requests: Sequence[str]) -> list[bool]:
        """Return, for each of `requests`, whether it may be fetched; true at most once."""
        now = time.monotonic()
        with self._lock:
            return [engine == self._engine and self._until.pop(name, 0.0) > now for name in requests]

    def close(self) -> None:
        """Stop answering."""
        self._context.term()
        self._thread.join()

    def _serve(self) -> None:
        with self._socket, suppress(zmq.ContextTerminated):
            while True:
                question = self._socket.recv_multipart()
                try:
                    engine, requests = msgspec.msgpack.decode(b"".join(question), type=tuple[str, list[str]])
                except (*UNDECODABLE, ValueError):
                    self._socket.send(b"")  # a stranger's: whoever asks next must be answered
                else:
                    self._socket.send(msgspec.msgpack.encode(self.claim(engine, requests)))


def claim(tickets: Sequence[Ticket | None], version: int) -> list[dict[str, Any] | None]:
    """Return, for each ticket, vLLM's params for fetching its cache; None if the prompt must be computed here.

    It must be computed if there is no ticket, the weights of the cache are not of `version`, the cache was claimed
    before, its lease is about to end, or the prefill rank is gone or does not answer.
    """
    found: list[dict[str, Any] | None] = [None] * len(tickets)
    offices: dict[tuple[str, str], list[int]] = {}
    for row, ticket in enumerate(tickets):
        if ticket is not None and ticket["version"] == version:
            offices.setdefault((ticket["office"], ticket["engine"]), []).append(row)
    for (office, engine), rows in offices.items():
        held: list[Ticket] = [ticket for row in rows if (ticket := tickets[row]) is not None]
        granted = _ask(office, engine, [ticket["request"] for ticket in held])
        for row, ticket, good in zip(rows, held, granted, strict=True):
            found[row] = dict(ticket["params"]) if good else None
    return found


def _ask(office: str, engine: str, requests: list[str]) -> Sequence[bool]:
    none = [False] * len(requests)
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(ANSWER_S * 1000))
        socket.ipv6 = "[" in office
        socket.connect(office)
        try:
            socket.send(msgspec.msgpack.encode((engine, requests)))
            answer = msgspec.msgpack.decode(socket.recv(), type=list[bool])
        except (zmq.Again, *UNDECODABLE):
            return none
    return answer if len(answer) == len(requests) else none
