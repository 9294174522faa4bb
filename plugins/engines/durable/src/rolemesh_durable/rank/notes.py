"""The notes of operators, in the rank's send log. A rank that repeats a step makes the decisions of its former life."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import msgspec

from rolemesh.api.workload import RankContext
from rolemesh_checkpoint.send_log import SendLog

__all__ = ["Notes"]

SCOPE = "notes"
"""The scope of notes in the send log."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Any]).decode


class Notes(MutableMapping[str, Any]):
    """`RankContext.notes`: the notes of the step that runs. Without a log no rank is restored, so it writes none."""

    def __init__(self, ctx: RankContext, log: SendLog | None) -> None:
        self._ctx, self._log, self._step = ctx, log, -1
        self._now: dict[str, Any] = {}
        self._former: dict[int, dict[str, Any]] = {}

    def remember(self, resume: int) -> None:
        """Read the notes of the steps after `resume`, from which the rank continues."""
        for record in self._log.decisions(SCOPE) if self._log is not None else ():
            if record.step > resume:
                key, value = _decode(record.body)
                self._former.setdefault(record.step, {})[key] = value

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
            self._log.decide(SCOPE, self._step, 0, _encode((key, value)))

    def __delitem__(self, key: str) -> None:
        raise TypeError("what is noted stays so")

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes())

    def __len__(self) -> int:
        return len(self._notes())
