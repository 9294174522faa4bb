"""An asynchronous agent that calls a tool, and the tool, a role with services only."""

from __future__ import annotations

import asyncio

import numpy as np

from rolemesh import (
    Balanced,
    Batch,
    Broadcast,
    OptionsError,
    RankContext,
    Split,
    Workload,
    operator,
    service,
)  # fmt: skip


class Agent(Workload):
    """Doubles numbers with a tool, several conversations at once."""

    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.under_way = asyncio.Semaphore(4)

    @operator(tasks=Balanced(1, 8), returns=Split())
    async def work(self, tasks: Batch) -> Batch:
        """Each task's number doubled, and noise that belongs to the item."""
        assert tasks.rows == 1
        item = self.ctx.item
        async with self.under_way:
            session = self.ctx.session("tool")
            doubled = await self.ctx.call("tool", "double", int(tasks["n"][0]), session=session)
        assert self.ctx.item == item
        noise = self.ctx.rng(self.ctx.step, item).standard_normal()
        return Batch({"n": np.array([doubled]), "noise": np.array([noise])})


class Reader(Workload):
    """Asks what the job lists under ``plugins``."""

    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        if ("sources", "files") not in ctx.plugins:
            raise OptionsError("no source", where="source", remedy="list files under plugins.sources")
        self.source = ctx.plugins["sources", "files"]()

    @operator(returns=Broadcast())
    def where(self) -> list[str]:
        """The files that it would read."""
        return [str(self.source.options.path)]


class Tool(Workload):
    """Has no operators."""

    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        self.opened: dict[str, int] = {}

    @service(concurrency=4)
    async def double(self, n: int) -> int:
        """Twice as many."""
        await asyncio.sleep(0)
        return 2 * n

    @service
    def move(self, game: str) -> int:
        """The number of moves of a session's game so far."""
        self.opened[game] = self.opened.get(game, 0) + 1
        return self.opened[game]


class Forgetting(Tool):
    """A tool whose answer depends on the calls before."""

    calls = 0

    @service
    def double(self, n: int) -> int:  # type: ignore[override]
        """Twice as many, the first time."""
        self.calls += 1
        return 2 * n * self.calls
