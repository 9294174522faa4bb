"""The limits of a conversation that count what the rollout and the tools have worked."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from agent_bench import ByteTemplate

from rolemesh import RankContext
from rolemesh_agents import EndReached, Start, Task
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk


def talk_with(turn_s: float, limits: ConversationLimits) -> tuple[Talk, RemoteEpisode]:
    """A conversation whose turns take the rollout `turn_s` seconds each, as the rollout says."""

    async def sampler(prompt, params):
        one = np.zeros(1)
        return SampledTurn(np.array([65], np.int32), one, one.astype(np.int64), "length", turn_s)

    episode = RemoteEpisode(RankContext(), "environment", Task(0, None), 0)
    start = Start([{"role": "user", "content": "begin"}])
    return Talk(0, 0, start, episode, ByteTemplate(), sampler, limits, {}), episode


def test_a_conversation_is_truncated_when_rollout_and_tools_have_worked_for_its_seconds() -> None:
    async def main() -> None:
        talk, episode = talk_with(4.0, ConversationLimits(conversation_s=10.0, turns=100))
        await talk.sample()
        episode.seconds += 5.0  # 9 s are over, and another turn may begin
        await talk.sample()
        with pytest.raises(EndReached):
            await talk.sample()
        assert (talk.turns, talk.ended, talk.reason) == (2, "truncated", "seconds")

    asyncio.run(main())


def test_time_in_which_a_conversation_only_waits_is_not_limited() -> None:
    async def main() -> None:
        talk, episode = talk_with(0.0, ConversationLimits(conversation_s=0.001, turns=3))
        episode.waited += 1000.0
        for _ in range(3):
            await talk.sample()
        with pytest.raises(EndReached):
            await talk.sample()
        assert talk.reason == "turns"

    asyncio.run(main())
