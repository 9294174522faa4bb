"""The messages of a rank about itself, in a file beside its sockets: its agent reads them when the rank has ended, and
a dead agent's next incarnation.

Lines of metrics are not in it: ranks keep those themselves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_durable.protocol.messages import RankToAgent

__all__ = ["Said"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[RankToAgent, ...]).decode


class Said:
    """The messages of one start of a rank, in order."""

    def __init__(self, folder: str, role: str, rank: int, generation: int) -> None:
        self._path = Path(folder, f"said-{role}-{rank}-{generation}")
        self._said: list[RankToAgent] = []

    def keep(self, message: RankToAgent) -> None:
        """Keep a message before the rank sends it. Without room for the file, only the receiver knows the message."""
        self._said.append(message)
        new = self._path.with_name(f".{self._path.name}")
        with suppress(OSError):
            new.write_bytes(_encode(self._said))
            os.replace(new, self._path)

    def all(self) -> tuple[RankToAgent, ...]:
        """Return all messages that this process has kept."""
        return tuple(self._said)

    def read(self) -> tuple[RankToAgent, ...]:
        """Return all messages that a process has kept there; none if the file cannot be read."""
        with suppress(OSError, *UNDECODABLE):
            return _decode(self._path.read_bytes())
        return ()
