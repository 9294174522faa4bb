"""One episode of verifiers, as its model sees it: verifiers asks for turns, and then judges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from rolemesh_agents import AgentError, Message
from rolemesh_verifiers.desk import Desk
from rolemesh_verifiers.messages import REMEDY, Asked, asked

__all__ = ["Play"]

MOST_ENDS = 16
"""Number of requests that an environment may make after the end of its conversation."""


class Play:
    """Runs an episode in the event loop of verifiers. `ask` comes from the desk, the other methods from rolemesh."""

    def __init__(self, environment: Any, context: Any, agent: str, desk: Desk, once: Sequence[str]) -> None:
        """`agent`: the name of the agent that the model plays. `once`: tools that must not be repeated."""
        self._environment, self._context, self._agent, self._desk = environment, context, agent, desk
        self._once = once
        self._news: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._turn: asyncio.Future[Message | None] | None = None
        self._traces: list[Any] = []
        self._over = self._ending = False
        self._wrong: AgentError | None = None
        self._ends = 0
        self._running: asyncio.Task[Any] | None = None

    def start(self, task: Any) -> None:
        """Start the episode of a task of verifiers."""
        run = self._environment.run_episode(task, self._context, on_trace=self._traced)
        self._running = asyncio.create_task(run)
        self._running.add_done_callback(lambda _: self._ended())

    async def next(self) -> Asked | None:
        """Return the next request to the model; None: there is no other one.

        Raises `AgentError` for a request that rolemesh cannot pass on.
        """
        found = None if self._over and self._news.empty() else await self._news.get()
        if self._wrong is not None:
            raise self._wrong
        return found

    def answer(self, turn: Message) -> None:
        """Answer the last request."""
        assert self._turn is not None
        turn_of, self._turn = self._turn, None
        turn_of.set_result(turn)

    async def result(self) -> tuple[Any, Any]:
        """End the conversation, wherever it is, and return verifiers' judged episode and the trace of the model."""
        self._ending = True
        if self._turn is not None:
            self._turn.set_result(None)
            self._turn = None
        assert self._running is not None
        episode = await asyncio.shield(self._running)
        if self._wrong is not None:
            raise self._wrong
        return episode, self._traces[0] if self._traces else None

    async def close(self) -> None:
        """End the episode, and with it its tools and its sandbox."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(BaseException):
                await self._running
        for trace in self._traces:
            self._desk.close(trace.id)

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

    def _traced(self, trace: Any) -> None:
        """Take note of a new run of an agent."""
        if trace.agent.name != self._agent:
            return
        if self._traces:
            self._fail("the environment has ended the model's run, and begins another one")
            return
        self._traces.append(trace)
        self._desk.open(trace.id, self.ask)
        trace.watch(self._changed)

    def _changed(self, trace: Any) -> None:
        """Note that verifiers begins to judge: it asks for no other turn then."""
        if trace.timing.finalize.start:
            self._ended()

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
