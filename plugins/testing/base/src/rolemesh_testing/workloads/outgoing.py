"""Calls of the rank under test to other roles. The test class answers them."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from rolemesh.errors import RolemeshError
from rolemesh_testing.workloads.wire import Answer, Asked, Request, packed, unpacked

__all__ = ["OutgoingCalls"]


class OutgoingCalls:
    """The `Caller` of a rank under test. A repeated operator call uses the same names of sessions."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        self._of, self._sessions = "", 0

    def begins(self, operator: str) -> None:
        """Begin an operator. Its name `operator` is a part of its sessions' names."""
        self._of, self._sessions = operator, 0

    async def call(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call`. Other tasks run first, as if the answer took time."""
        await asyncio.sleep(0)
        return self._ask(role, method, args, session)

    def call_and_wait(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call_and_wait`. Raises `RolemeshError` in an ``async def`` operator, as a job does."""
        if self._loop.is_running():
            what, remedy = "ctx.call_and_wait stops an `async def` operator", "write `await ctx.call(...)`"
            raise RolemeshError(what, remedy=remedy)
        return self._ask(role, method, args, session)

    def session(self, role: str) -> str:
        """See `RankContext.session`."""
        self._sessions += 1
        return f"{role}/0#0/{self._of}-{self._sessions}"

    def _ask(self, role: str, method: str, args: tuple[Any, ...], session: str) -> Any:
        self._connection.send_bytes(msgspec.msgpack.encode(Asked(role, method, packed(list(args)), session)))
        reply = msgspec.msgpack.decode(self._connection.recv_bytes(), type=Request)
        assert isinstance(reply, Answer)
        return unpacked(reply.value)
