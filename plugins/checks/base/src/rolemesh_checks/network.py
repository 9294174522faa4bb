"""The speed of the network between nodes: all at once, each node sends to the next one in a ring.

The processes find each other in the run's folder, which the nodes share: each writes its address there. The result of a
node is the better of what it sends and what it receives, so that of two neighbours only the slow one is named.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from rolemesh_durable.checks import Check, CheckedNode, CheckOptions

__all__ = ["NetworkCheck", "NetworkOptions"]

TOKEN_BYTES = 16
LOOK_S = 0.02
PIECE = 1 << 20


class NetworkOptions(CheckOptions):
    """Amount of data to send, and the limit."""

    slower: float | None = Field(default=3.0, gt=1, description="See every check; here 3 by default.")
    mb: int = Field(default=256, ge=1, description="Data that each node sends, in 2^20 bytes.")


class NetworkCheck(Check):
    """``gb_per_s`` (10^9 bytes per second) between a node and its neighbours; nothing if only one node is measured."""

    Options = NetworkOptions
    options: NetworkOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`. Raises `TimeoutError` with the name of the missing node."""
        if len(node.together) < 2:
            return {}
        until = time.monotonic() + 0.8 * self.options.timeout_s  # so that it says itself what it has waited for
        with Meeting(node) as meeting:
            thread = threading.Thread(target=meeting.serve, args=(until,), daemon=True)
            thread.start()
            at = node.together.index(node.id)
            sent = meeting.send(node.together[(at + 1) % len(node.together)], self.options.mb << 20, until)
            thread.join(max(0.0, until - time.monotonic()))
            if not meeting.received:
                raise TimeoutError(f"node {node.together[at - 1]} has sent nothing in {self.options.timeout_s:g} s")
            return {"gb_per_s": max(sent, meeting.received) / 1e9}


class Meeting:
    """This node's listener, and the file with its address. Both are removed at the end."""

    def __init__(self, node: CheckedNode) -> None:
        self.received = 0.0
        """Received bytes per second."""
        self._folder = Path(node.run_dir, f".network-{node.attempt}")
        self._token = secrets.token_bytes(TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in node.host else socket.AF_INET
        self._listener = socket.create_server((node.host, 0), family=family)
        self._folder.mkdir(exist_ok=True)
        self._file = self._folder / f"{node.id}.json"
        here = {"host": node.host, "port": self._listener.getsockname()[1], "token": self._token.hex()}
        draft = self._file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(here))
        os.replace(draft, self._file)

    def serve(self, until: float) -> None:
        """Receive the data of the previous node. A connection without the token is closed."""
        while not self.received and (left := until - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.settimeout(left)
                if peer.recv(TOKEN_BYTES, socket.MSG_WAITALL) == self._token:
                    self.received = _drained(peer)
                    peer.sendall(b"!")

    def send(self, node: str, count: int, until: float) -> float:
        """Send `count` bytes to `node`; return the bytes per second."""
        host, port, token = self._where(node, until)
        with socket.create_connection((host, port), max(0.1, until - time.monotonic())) as peer:
            peer.sendall(token)
            data = memoryview(bytearray(PIECE))
            began = time.perf_counter()
            for _ in range(max(1, count // PIECE)):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            if peer.recv(1) != b"!":
                raise ConnectionError(f"node {node} hung up")
            return count / (time.perf_counter() - began)

    def _where(self, node: str, until: float) -> tuple[str, int, bytes]:
        path = self._folder / f"{node}.json"
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                at = json.loads(path.read_text())
                return at["host"], at["port"], bytes.fromhex(at["token"])
            time.sleep(LOOK_S)
        raise TimeoutError(f"node {node} has not come to {self._folder.parent}: is it one folder on all nodes?")

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self._file.unlink(missing_ok=True)
        with suppress(OSError):  # others are still there
            self._folder.rmdir()


def _drained(peer: socket.socket) -> float:
    buffer, count, began = bytearray(PIECE), 0, time.perf_counter()
    while got := peer.recv_into(buffer):
        count += got
    return max(1.0, count / (time.perf_counter() - began))
