"""A conversation as a harness sees it: what the environment gets with a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from agent_bench import ByteTemplate

from rolemesh.errors import PluginError
from rolemesh_agents import (
    AgentError,
    ConversationFailedError,
    EndReached,
    Observation,
    Outcome,
    Reward,
    Start,
    Tool,
    ToolCall,
)
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.errors import BreachError

TOOLS = (Tool("look", "", {}), Tool("pay", "", {}, repeatable=False))


class Notes:
    """Writes down the calls that an episode gets."""

    def __init__(self, hears: bool, seconds: float = 0.0, done: bool = False) -> None:
        """`seconds`: those that `reset` took. `done`: each answer ends the episode."""
        self.hears, self.seconds, self.done = hears, seconds, done
        self.calls = list[tuple[Any, ...]]()

    async def call(
        self, call: ToolCall, repeatable: bool, limit: float, turn: tuple[str, Sequence[ToolCall]] | None
    ) -> Observation:
        heard = None if turn is None else (turn[0], [each.name for each in turn[1]])
        self.calls.append((call.name, repeatable, heard))
        return Observation("", self.done)

    async def reply(self, content: str, limit: float) -> Outcome:
        return Outcome(done=self.done)


async def sampled(prompt: Any, params: Any) -> SampledTurn:
    text = "So: " + "".join(json.dumps({"name": name, "arguments": {"a": 1}}) for name in ("look", "pay"))
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    return SampledTurn(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int64), "stop", 0.0)


def test_withdrawn_messages_are_not_read_and_long_ones_are_not_counted() -> None:
    async def talks() -> Talk:
        episode: Any = Notes(False)
        start = Start([{"role": "user", "content": "hello"}], ())
        talk = Talk(0, 0, start, episode, ByteTemplate(), sampled, ConversationLimits(tokens=1000), {})
        await talk.sample()
        asked = {"role": "user", "content": "more"}
        counted = talk.count([asked], sample=0)
        talk.append([{"role": "user", "content": "cancelled"}])
        talk.withdraw()
        talk.withdraw()
        assert talk.count([asked], sample=0) == counted
        for sample in (None, 0):
            with pytest.raises(AgentError, match="the messages have 2000000 characters") as caught:
                talk.count([{"role": "user", "content": "x" * 2_000_000}], sample=sample)
            assert type(caught.value) is AgentError  # the conversation goes on
        talk.append([asked])
        await talk.sample()
        return talk

    (transcript,) = asyncio.run(talks()).transcripts
    assert [each["content"] for each in transcript.messages if each["role"] == "user"] == ["hello", "more"]
    assert b"cancelled" not in bytes(np.clip(transcript.ids(), 0, 255).tolist())


@pytest.mark.parametrize(
    ("hears", "calls"),
    [
        (False, [("look", True, None), ("pay", False, None), ("look", True, None)]),
        (True, [("look", False, ("So: ", ["look", "pay"])), ("pay", False, None), ("look", True, None)]),
    ],
)
def test_an_episode_that_hears_turns_gets_them_with_their_first_call(hears: bool, calls: list[Any]) -> None:
    """Such an episode may carry out all calls at the first one, so this one is as repeatable as all of them."""

    async def talks() -> list[tuple[Any, ...]]:
        episode: Any = Notes(hears)
        start = Start([{"role": "user", "content": "hello"}], TOOLS)
        limits = ConversationLimits(tokens=1000)
        talk = Talk(0, 0, start, episode, ByteTemplate(), sampled, limits, {})
        turn = await talk.sample()
        for call in (*turn.calls, ToolCall("look", {}, "of a program")):
            await talk.call(call)
        return list(episode.calls)

    assert asyncio.run(talks()) == calls


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda talk: talk.judge(Reward(float("nan"))), "Reward.value is nan, not a finite number"),
        (lambda talk: talk.judge(1.0), "Conversation.judge got float instead of Reward"),
        (lambda talk: talk.append([{"content": "hello"}]), "Conversation.append got the message .* without a role"),
        (lambda talk: talk.begin([{"role": "user", "content": 3}]), "Conversation.begin got .* is int instead of text"),
    ],
)
def test_a_harness_that_breaks_the_contract_is_refused(wrong: Callable[[Talk], Any], message: str) -> None:
    episode: Any = Notes(False)
    start = Start([{"role": "user", "content": "hello"}], TOOLS)
    talk = Talk(0, 0, start, episode, ByteTemplate(), sampled, ConversationLimits(tokens=1000), {})
    with pytest.raises(PluginError, match=message):
        wrong(talk)
    assert talk.reward is None


def test_two_turns_of_one_sample_at_once_are_refused() -> None:
    """The tokens of the second turn would follow tokens that it was not sampled after."""

    async def talks() -> list[Any]:
        episode: Any = Notes(False)

        async def slow(prompt: Any, params: Any) -> SampledTurn:
            await asyncio.sleep(0)
            return await sampled(prompt, params)

        start = Start([{"role": "user", "content": "hello"}], TOOLS)
        talk = Talk(0, 0, start, episode, ByteTemplate(), slow, ConversationLimits(tokens=1000), {})
        return await asyncio.gather(talk.sample(), talk.sample(), return_exceptions=True)

    first, second = asyncio.run(talks())
    assert first.content == "So: "
    assert "still being sampled" in str(second)


async def looks(talk: Talk) -> None:
    await talk.call(ToolCall("look", {}, "of a program"))


async def replies(talk: Talk) -> None:
    await talk.reply("hello")


async def finishes(talk: Talk) -> None:
    talk.finish("too hard")


async def returns(talk: Talk) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("harness", "seconds", "reason", "kind"),
    [
        (looks, 0.0, "the environment ended the episode at the call of 'look', before", ConversationFailedError),
        (replies, 0.0, "the environment ended the episode at `reply`, before", ConversationFailedError),
        (Talk.sample, 9.0, "worked 9 s before .*, and limits.conversation_s is 5", ConversationFailedError),
        (looks, 9.0, "worked 9 s before .*, and limits.conversation_s is 5", ConversationFailedError),
        (finishes, 0.0, r"the harness ended the conversation before the model's first turn \(too hard\)", BreachError),
        (returns, 0.0, "the harness ended the conversation before the model's first turn\n", BreachError),
    ],
)
def test_an_end_without_a_turn_names_who_ended_the_conversation(
    harness: Any, seconds: float, reason: str, kind: type[AgentError]
) -> None:
    """Only the harness's own end is its breach, at which the job ends; another task may go well after the others."""

    async def held() -> None:
        episode: Any = Notes(False, seconds, done=True)
        start = Start([{"role": "user", "content": "hello"}], TOOLS)
        limits = ConversationLimits(tokens=1000, conversation_s=5.0)
        talk = Talk(0, 0, start, episode, ByteTemplate(), sampled, limits, {})
        with suppress(EndReached):
            await harness(talk)
        talk.returned()

    with pytest.raises(AgentError, match=reason) as caught:
        asyncio.run(held())
    assert type(caught.value) is kind
    assert caught.value.remedy
