"""One episode of verifiers, as its model sees it: verifiers asks for turns, and then judges. Both kinds share it."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rolemesh_agents import AgentError, Message, Reward
from rolemesh_verifiers.desk import Desk
from rolemesh_verifiers.judging import hook_failed
from rolemesh_verifiers.messages import REMEDY, Asked, asked

__all__ = ["Play"]

MOST_ENDS = 16
"""Number of requests that an environment may make after the end of its conversation."""


class Play(ABC):
    """Runs an episode in the event loop of verifiers. `ask` comes from the desk, the other methods from rolemesh.

    A subclass runs an episode of one kind: it opens the desk for it, and says when verifiers begins to judge.
    """

    def __init__(self, desk: Desk, once: Sequence[str]) -> None:
        """`once`: tools that must not be repeated."""
        self._desk, self._once = desk, once
        self._news: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._turn: asyncio.Future[Message | None] | None = None
        self._open: list[str] = []
        self._over = self._ending = False
        self._wrong: AgentError | None = None
        self._ends = 0
        self._running: asyncio.Task[Any] | None = None

    def start(self, task: Any) -> None:
        """Start the episode of a task of verifiers."""
        self._running = asyncio.create_task(self._run_told(task))
        self._running.add_done_callback(lambda _: self._ended())

    async def _run_told(self, task: Any) -> Any:
        try:
            return await self._run(task)
        except AgentError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise hook_failed(error) from error

    @abstractmethod
    async def _run(self, task: Any) -> Any:
        """Run the episode, judge it, and return what `_judged` needs."""

    @abstractmethod
    def _judged(self, result: Any, success: float | None) -> Reward:
        """Return the reward. Raises `AgentError` if anything has failed."""

    async def next(self) -> Asked | None:
        """Return the next request to the model; None: there is no other one.

        Raises `AgentError` for a request that rolemesh cannot pass on.
        """
        found = None if self._over and self._news.empty() else await self._news.get()
        if self._wrong is not None:
            raise self._wrong
        return found

    def answer(self, turn: Message | None) -> None:
        """Answer the last request; None: the conversation is over."""
        assert self._turn is not None
        turn_of, self._turn = self._turn, None
        turn_of.set_result(turn)

    async def reward(self, success: float | None) -> Reward:
        """End the conversation, wherever it is, and return verifiers' judgement.

        `success`: the reward from which on the task counts as solved.
        """
        self._ending = True
        if self._turn is not None:
            self.answer(self._cut())
        assert self._running is not None
        result = await asyncio.shield(self._running)
        if self._wrong is not None:
            raise self._wrong
        return self._judged(result, success)

    def _cut(self) -> Message | None:
        """Return what stands for a turn that a limit has cut; None: nothing."""
        return None

    async def close(self) -> None:
        """End the episode, and with it its tools, its sandbox, and the request that waits for a turn."""
        self._ending = True
        if self._turn is not None:
            self.answer(None)
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(BaseException):
                await self._running
        for each in self._open:
            self._desk.close(each)

    async def ask(self, body: Any) -> Message | None:
        """Take a request of verifiers, and return the model's turn; None: the conversation is over."""
        if self._ending or self._over or self._wrong is not None:
            self._ends += 1
            if self._ends > MOST_ENDS:
                self._fail("the environment goes on asking after the end of the conversation")
            return None
        if self._turn is not None:
            self._fail("the environment asks for two turns of the model at the same time")
            return None
        try:
            request = asked(body, self._once)
        except AgentError as error:
            self._wrong = error
            self._news.put_nowait(None)
            return None
        self._turn = asyncio.get_running_loop().create_future()
        self._news.put_nowait(request)
        return await self._turn

    def _opened(self, name: str) -> None:
        """Let the desk pass the requests of `name` on to this episode."""
        self._open.append(name)
        self._desk.open(name, self.ask)

    def _ended(self) -> None:
        if not self._over:
            self._over = True
            self._news.put_nowait(None)

    def _fail(self, what: str) -> None:
        if self._wrong is None:
            self._wrong = AgentError(what, remedy=REMEDY)
            if self._turn is not None:
                self._turn.set_result(None)
                self._turn = None
            self._news.put_nowait(None)
