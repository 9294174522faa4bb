"""The meeting point of a conversation: the server puts requests in, and the conversation's task takes them out.

Calls to other roles belong to the task of the operator that makes them, so the server's handlers make none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeAlias

import msgspec

from rolemesh_agents import Reward, ToolCall
from rolemesh_gateway.requests import Ask, Count, Find, RefusedError

__all__ = ["Counts", "Desk", "Exchange", "Work"]

Work: TypeAlias = Ask | Count | Find | ToolCall | Reward
"""A request: for a turn of the model, for a number of tokens or a kept answer, for a call of one of the environment's
tools, or with the reward."""
LOST = 8
"""Number of answers that the desk keeps for clients that have lost them."""


class Exchange:
    """One request and the future of its answer."""

    def __init__(self, work: Work, answer: asyncio.Future[Any]) -> None:
        self.work = work
        self.answer = answer
        """The client that waits; another one, if this client has gone away and the same request has come again."""

    def fail(self, error: RefusedError) -> None:
        """Refuse the request, if the client still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Desk:
    """The requests of one conversation, in the order in which they have come.

    A client may go away while the conversation works on its request. The work then goes on for `retry_s`, and the same
    request gets its answer, so that no turn is sampled twice. Another request for a turn or a call ends the work.
    """

    def __init__(self, most: int, retry_s: float) -> None:
        self._most = most
        self._retry_s = retry_s
        self._waiting: deque[Exchange] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._now: tuple[Exchange, asyncio.Task[Any]] | None = None
        """The request under work, and its task; None as soon as the task is cancelled."""
        self._timer: asyncio.TimerHandle | None = None
        self._lost: list[tuple[Work, Any]] = []
        """Requests whose answers no client has got."""
        self._ended: Any = None
        self._closed = False
        self.repeated = 0
        """The number of requests that got the answer to an earlier one."""

    @property
    def waits(self) -> int:
        """The number of requests that wait for their turn."""
        return len(self._waiting)

    async def ask(self, work: Work) -> Any:
        """Return the answer to `work`. Raises `RefusedError`, also if too many requests wait or nobody answers."""
        for entry in self._lost:
            if _same(entry[0], work):
                self._lost.remove(entry)
                self.repeated += 1
                return entry[1]
        if self._closed:
            raise RefusedError(400, "the conversation is over", code="conversation_over")
        answer = asyncio.get_running_loop().create_future()
        if not self._adopted(work, answer):
            if len(self._waiting) >= self._most:
                reason = f"{self._most} requests of this conversation wait already"
                raise RefusedError(429, reason, code="too_many_requests", retry=True)
            self._waiting.append(Exchange(work, answer))
            self._wake()
        try:
            return await answer
        except asyncio.CancelledError:
            self._leave(work, answer)
            raise

    def lost(self, work: Work, answer: Any) -> None:
        """Keep an answer that the client has not got, for the same request."""
        if isinstance(work, Ask | ToolCall):
            self._lost = [*self._lost[1 - LOST :], (work, answer)]

    def end(self, result: Any) -> None:
        """Note that the program has ended; `take` returns `result` after all requests."""
        self._ended = result
        self._wake()
        if self._now is not None and self._now[0].answer.cancelled():
            self._drop()

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

    def begins(self, exchange: Exchange, task: asyncio.Task[Any]) -> None:
        """`task` works on the answer; it is cancelled if the client goes away and does not come back."""
        self._now = exchange, task

    def answered(self, exchange: Exchange, answer: Any) -> None:
        """Give the answer to the client, or keep it for the client if it has gone away."""
        self._settle()
        if exchange.answer.done():
            self.lost(exchange.work, answer)
        else:
            exchange.answer.set_result(answer)

    def failed(self, exchange: Exchange, error: RefusedError) -> None:
        """Refuse the request under work, if the client still waits."""
        self._settle()
        exchange.fail(error)

    def close(self) -> None:
        """Refuse the requests that wait, and all later ones."""
        self._closed = True
        self._settle()
        for exchange in self._waiting:
            exchange.fail(RefusedError(400, "the conversation is over", code="conversation_over"))
        self._waiting.clear()

    def _adopted(self, work: Work, answer: asyncio.Future[Any]) -> bool:
        """Give the request under work to a client that asks for it again. Another request ends work for nobody."""
        if self._now is None or not self._now[0].answer.cancelled():
            return False
        if _same(self._now[0].work, work):
            self._now[0].answer = answer
            self._stop_timer()
            self.repeated += 1
            return True
        if isinstance(work, Ask | ToolCall):
            self._drop()
        return False

    def _leave(self, work: Work, answer: asyncio.Future[Any]) -> None:
        """A client has gone away."""
        if answer.done() and not answer.cancelled():
            if answer.exception() is None:
                self.lost(work, answer.result())
            return
        answer.cancel()
        if self._now is None or self._now[0].answer is not answer:
            return
        for exchange in self._waiting:
            if not exchange.answer.done() and _same(exchange.work, work):
                self._waiting.remove(exchange)
                self._now[0].answer = exchange.answer
                self.repeated += 1
                return
        if self._ended is not None or not self._retry_s:
            self._drop()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._drop)

    def _drop(self) -> None:
        """Cancel the request under work. From now on no client can take it over."""
        now = self._now
        self._settle()
        if now is not None:
            now[1].cancel()

    def _settle(self) -> None:
        self._now = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)


class Counts(msgspec.Struct):
    """Numbers of the requests of a conversation, for metrics."""

    turns: int = 0
    repeated: int = 0
    cancelled: int = 0
    begun: int = 0
    """Samples that began because a request continued none."""


def _same(one: Work, other: Work) -> bool:
    """Whether two requests are one that a client has sent again. A call without an id may be meant twice."""
    if isinstance(one, Ask):
        return one.repeats(other)
    return isinstance(one, ToolCall) and bool(one.id) and one == other
