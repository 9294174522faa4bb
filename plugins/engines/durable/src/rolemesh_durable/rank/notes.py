"""What operators have decided, in the rank's send log: whoever runs a step again does as its former life did."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import msgspec

from rolemesh.api.workload import RankContext
from rolemesh_durable.checkpoint.send_log import SendLog

__all__ = ["Notes"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, Any]).decode


class Notes(MutableMapping[str, Any]):
    """`RankContext.notes`: those of the step that runs. Without a log nobody is restored, so nothing is written."""

    def __init__(self, ctx: RankContext[Any], log: SendLog | None) -> None:
        self._ctx, self._log, self._step = ctx, log, -1
        self._now: dict[str, Any] = {}
        self._former: dict[int, dict[str, Any]] = {}

    def remember(self, resume: int) -> None:
        """The rank goes on after step `resume`: take up what was noted of later ones."""
        for step, key, value in map(_decode, self._log.notes(resume) if self._log is not None else ()):
            self._former.setdefault(step, {})[key] = value

    def _notes(self) -> dict[str, Any]:
        if self._step != self._ctx.step:
            self._step = self._ctx.step
            self._now = self._former.pop(self._step, {})
        return self._now

    def __getitem__(self, key: str) -> Any:
        return self._notes()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._notes()[key] = value
        if self._log is not None:
            self._log.note(self._step, _encode((self._step, key, value)))

    def __delitem__(self, key: str) -> None:
        raise TypeError("what is noted stays so")

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes())

    def __len__(self) -> int:
        return len(self._notes())
