"""A call of an operator, from the request to the answer that the operator receives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from rolemesh.api.service import CallError, CallTimeoutError, CallUncertainError, SessionLostError
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import Buffer, decode
from rolemesh_durable.extensions.calls.frames import ANSWER, BREACH, LATE, LOST, UNCERTAIN, Answer, Request
from rolemesh_durable.extensions.calls.states import OpenCall
from rolemesh_runtime.breaches import ServiceBreach

__all__ = ["Waiting"]


class Waiting:
    """A call, and its answer once there is one."""

    __slots__ = (
        "answer", "buffers", "call", "frame", "future", "hold", "keeps", "method", "request", "role", "since", "step",
        "where",
    )  # fmt: skip

    def __init__(self, role: str, method: str, where: str) -> None:
        self.role, self.method, self.where = role, method, where
        self.frame = b""
        self.request: Request | None = None
        """The request of a call that only the life may run to which it is sent."""
        self.buffers: Sequence[Buffer] = ()
        self.call: OpenCall[Waiting] | None = None
        self.answer: tuple[Answer, Sequence[Buffer]] | None = None
        self.future: asyncio.Future[None] | None = None
        self.keeps: SendLog | None = None
        """The log in which its outcome is kept; None if it is not."""
        self.since, self.step, self.hold = monotonic_ns(), -1, 0

    def answered(self, answer: Answer, buffers: Sequence[Buffer]) -> None:
        """Wake the operator that waits."""
        self.answer = answer, buffers
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def value(self) -> Any:
        """Return the method's result. Raises the call's error."""
        assert self.answer is not None
        words, buffers = self.answer
        if words.kind == ANSWER:
            return decode(words.value, buffers)
        if words.kind == LOST:
            raise SessionLostError(
                f"the session with {self.name} is lost: its rank has started again",
                where=self.where,
                remedy="begin another with ctx.session, and repeat in it what is needed",
            )
        if words.kind == UNCERTAIN:
            raise CallUncertainError(
                f"{self.name} may have run: its rank died before it answered, or cancelled the call",
                where=self.where,
                remedy="give up the work that needs it, or find out what has happened",
            )
        if words.kind == LATE:
            remedy = "raise its timeout, or see why its rank is slow"
            raise CallTimeoutError(decode(words.value, buffers), where=self.where, remedy=remedy)
        if words.kind == BREACH:
            what, remedy = decode(words.value, buffers)
            what = f"{self.name} has broken its contract: {what}"
            raise ServiceBreach(what, kind="misbehaved", where=self.where, remedy=remedy)
        raise CallError(f"{self.name} has raised {decode(words.value, buffers)}", where=self.where)

    @property
    def name(self) -> str:
        """The called rank and method, in words."""
        rank = f"/{self.call.rank}" if self.call is not None and self.call.rank >= 0 else ""
        return f"{self.role}{rank}.{self.method}"
