"""A rank of an agent shows how far the conversations of its present step are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rolemesh_agents.workloads.agent import AgentWorkload, UnderWay


def test_a_rank_shows_how_many_conversations_of_its_operator_have_ended() -> None:
    told: list[tuple[int, int]] = []
    agent = AgentWorkload.__new__(AgentWorkload)
    ctx = SimpleNamespace(step=0, progress=lambda done, total: told.append((done, total)))
    agent._ctx, agent._under_way = ctx, UnderWay()

    async def conversation(end: asyncio.Event) -> Any:
        await end.wait()

    async def hold() -> None:
        ends = [asyncio.Event() for _ in range(3)]
        tasks = [asyncio.create_task(agent._shown(conversation(end), False)) for end in ends]
        await asyncio.sleep(0)
        assert told == [(0, 1), (0, 2), (0, 3)]
        ends[0].set()
        await tasks[0]
        assert told[-1] == (1, 3)
        ctx.step = 1
        ends[1].set()
        await tasks[1]
        assert told[-1] == (1, 2), "two outlasted their step, and count in the next one"
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        assert told[-1] == (2, 2)

    asyncio.run(hold())
