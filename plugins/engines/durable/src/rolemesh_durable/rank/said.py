"""What a rank has said of itself: kept in a file beside its sockets, for the next incarnation of an agent that dies.

Lines of metrics are not in it: ranks keep those themselves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

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
        """Before it is sent. Where there is no room for it, only who hears it knows it."""
        self._said.append(message)
        new = self._path.with_name(f".{self._path.name}")
        with suppress(OSError):
            new.write_bytes(_encode(self._said))
            os.replace(new, self._path)

    def all(self) -> tuple[RankToAgent, ...]:
        """All that this process has kept."""
        return tuple(self._said)

    def read(self) -> tuple[RankToAgent, ...]:
        """All that a process has kept there; nothing, if it cannot be read."""
        try:
            return _decode(self._path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return ()
