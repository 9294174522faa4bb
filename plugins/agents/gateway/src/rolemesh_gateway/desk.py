"""The meeting point of a conversation: the server puts requests in, and the conversation's task takes them out.

Calls to other roles belong to the task of the operator that makes them, so the server's handlers make none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeAlias

import msgspec

from rolemesh_agents import Reward, ToolCall
from rolemesh_gateway.requests import Ask, RefusedError

__all__ = ["Counts", "Desk", "Exchange", "Work"]

Work: TypeAlias = Ask | ToolCall | Reward
"""A request: for a turn of the model, for a call of one of the environment's tools, or with the reward."""


class Exchange:
    """One request and the future of its answer."""

    def __init__(self, work: Work, answer: asyncio.Future[Any]) -> None:
        self.work = work
        self.answer = answer
        self._task: asyncio.Task[Any] | None = None

    def begins(self, task: asyncio.Task[Any]) -> None:
        """`task` works on the answer; it is cancelled if the client goes away."""
        self._task = task
        if self.answer.cancelled():
            task.cancel()

    def succeed(self, answer: Any) -> None:
        """Give the answer, if the client still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: RefusedError) -> None:
        """Refuse the request, if the client still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def give_up(self) -> None:
        """The client has gone away."""
        self.answer.cancel()
        if self._task is not None:
            self._task.cancel()


class Desk:
    """The requests of one conversation, in the order in which they have come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Exchange] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._ended: Any = None
        self._closed = False

    @property
    def waits(self) -> int:
        """The number of requests that wait for their turn."""
        return len(self._waiting)

    async def ask(self, work: Work) -> Any:
        """Return the answer to `work`. Raises `RefusedError`, also if too many requests wait or nobody answers."""
        if self._closed:
            raise RefusedError(400, "the conversation is over", code="conversation_over")
        if len(self._waiting) >= self._most:
            reason = f"{self._most} requests of this conversation wait already"
            raise RefusedError(429, reason, code="too_many_requests", retry=True)
        exchange = Exchange(work, asyncio.get_running_loop().create_future())
        self._waiting.append(exchange)
        self._wake()
        try:
            return await exchange.answer
        except asyncio.CancelledError:
            exchange.give_up()
            raise

    def end(self, result: Any) -> None:
        """Note that the program has ended; `take` returns `result` after all requests."""
        self._ended = result
        self._wake()

    async def take(self) -> Exchange | Any:
        """Return the next request, or the result of the program's end. It makes no task, and only one task takes."""
        while True:
            while self._waiting:
                exchange = self._waiting.popleft()
                if not exchange.answer.done():
                    return exchange
            if self._ended is not None:
                return self._ended
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker

    def close(self) -> None:
        """Refuse the requests that wait, and all later ones."""
        self._closed = True
        for exchange in self._waiting:
            exchange.fail(RefusedError(400, "the conversation is over", code="conversation_over"))
        self._waiting.clear()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)


class Counts(msgspec.Struct):
    """Numbers of the requests of a conversation, for metrics."""

    turns: int = 0
    repeated: int = 0
    cancelled: int = 0
    refused: int = 0
    begun: int = 0
    """Samples that began because a request continued none."""
