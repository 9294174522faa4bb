"""The conversation that a harness holds: turns of the model, actions in the environment, limits and tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import numpy as np

from rolemesh.api.workload import stable_seed
from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.contract import breach, messages_of, reward_of
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.ties import tied
from rolemesh_agents.conversations.tokens import ParsedTurn, TokenTemplate
from rolemesh_agents.conversations.transcript import Transcript
from rolemesh_agents.environment import Observation, Outcome, Reward, Start
from rolemesh_agents.errors import AgentError, BreachError, ConversationFailedError, EndReached
from rolemesh_agents.harness import Turn

__all__ = ["Sampler", "Talk"]

Sampler = Callable[[np.ndarray[Any, np.dtype[Any]], Mapping[str, Any]], Awaitable[SampledTurn]]
"""Samples a turn that continues a prompt, with sampling parameters."""

TOKEN_CHARACTERS = 1024
"""More characters than a token of any tokenizer has."""
TOO_LONG = "raise limits.tokens and the rollout's limit, or leave such tasks out"


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(str(each.get("content") or "")) for each in messages)


class _Sample:
    """One transcript of the conversation, and the messages that the model has not seen yet."""

    def __init__(self, transcript: Transcript, tools: Sequence[Tool]) -> None:
        self.transcript, self.tools = transcript, tools
        self.pending: list[Message] = []
        self.calls: Sequence[ToolCall] = ()
        """The calls of the last turn."""
        self.turns = 0
        self.sampling = False

    @property
    def turn(self) -> Sequence[int]:
        """The tokens of the last turn."""
        return self.transcript.last()


class Talk:
    """One conversation; see `rolemesh_agents.Conversation` for the methods that a harness calls."""

    def __init__(
        self,
        number: int,
        seed: int,
        start: Start,
        episode: RemoteEpisode,
        template: TokenTemplate,
        sampler: Sampler,
        limits: ConversationLimits,
        params: Mapping[str, Any],
    ) -> None:
        """`params`: the sampling parameters of all turns."""
        self.number, self.seed, self.start = number, seed, start
        self.ended = ""
        """ "finished" or "truncated" once the conversation is over; "" before."""
        self.reason = ""
        """The limit that ended the conversation, or the harness's reason."""
        self.turns = self.unparsed = 0
        self.engine_s = 0.0
        self.reward: Reward | None = None
        self._ids: set[str] = set()
        """The ids of all calls."""
        self._unheard: ParsedTurn | None = None
        """The last turn, if the episode is to hear it with the first of its calls."""
        self._episode, self._template, self._sampler = episode, template, sampler
        self._limits, self._params = limits, dict(params)
        self._samples: list[_Sample] = []
        self._now = self._begun(start.messages, start.tools, "")  # the episode's side has checked the messages

    # --------------------------------------------------------------------------------------- what the harness calls

    async def sample(self, params: Mapping[str, Any] | None = None) -> Turn:
        """See `Conversation.sample`."""
        self._check()
        now, limits = self._now, self._limits
        transcript = now.transcript
        added: Sequence[int] = ()
        if not transcript.messages:
            what = "there is no message for the model"
            raise BreachError(what, remedy="return at least one message in the Start of Episode.reset")
        if now.turns:
            if self._hopeless(now.pending):
                self._end("truncated", "tokens")
            added = self._template.increment(now.turn, now.pending, now.tools)
        left = limits.tokens - len(transcript) - len(added)
        if self.turns >= limits.turns:
            self._end("truncated", "turns")
        if left < 1:
            self._full(len(transcript), f"limits.tokens is {limits.tokens}")
        given = {**self._params, **(params or {}), "seed": stable_seed(self.seed, "turn", self.turns)}
        asked = given.get("max_tokens")
        if asked is not None and (not isinstance(asked, int) or asked < 0):
            raise breach(f"max_tokens is {asked!r:.100}, not a whole number from 1 on")
        given["max_tokens"] = min(asked or limits.turn_tokens, limits.turn_tokens, left)
        given["stop_token_ids"] = [*self._template.stop_token_ids, *given.get("stop_token_ids", ())]
        if given.get("structured_outputs") and getattr(self._template, "begins_in_reasoning", False):
            raise AgentError(
                "structured_outputs would forbid the reasoning with which this chat template begins each turn",
                remedy="leave structured_outputs out, or make a template without reasoning: the option template",
            )
        prompt = np.concatenate([transcript.ids(), np.asarray(added, np.int32)])
        if now.sampling:
            what = "this sample's last turn is still being sampled"
            raise breach(what, remedy="wait for it, or begin another sample")
        now.sampling = True
        try:
            sampled = await self._sampler(prompt, given)
        finally:
            now.sampling = False
        if not len(sampled.ids) and sampled.finish == "length":
            self._full(len(prompt), "the longest prompt of the rollout is shorter")
        self._note(now, added, sampled, given)
        ids = sampled.ids.tolist()
        parsed = self._named(self._parsed(ids, now.tools, given))
        now.calls = parsed.calls
        self._unheard = parsed if self._episode.hears else None
        transcript.messages.append(self._template.message(parsed))
        text = parsed.content if parsed.text is None else parsed.text
        told = parsed.content, parsed.calls, parsed.unparsed, ids, sampled.finish, len(prompt)
        return Turn(*told, text, parsed.reasoning, parsed.stop)

    async def call(self, call: ToolCall) -> Observation:
        """See `Conversation.call`."""
        self._check()
        turn = self._heard(call)
        names = {call.name} if turn is None else {each.name for each in turn[1]}
        repeatable = all(tool.repeatable for tool in self.start.tools if tool.name in names)
        found = await self._episode.call(call, repeatable, self._limits.call_s, turn)
        if found.done:
            self._done(f"the call of {call.name!r:.100}")
        return found

    async def reply(self, content: str) -> Outcome:
        """See `Conversation.reply`."""
        self._check()
        found = await self._episode.reply(content, self._limits.call_s)
        if found.done:
            self._done("`reply`")
        return found

    def append(self, messages: Sequence[Message]) -> None:
        """See `Conversation.append`."""
        now, messages = self._now, messages_of(messages, "Conversation.append got")
        now.transcript.messages.extend(messages)
        if not now.turns:
            told = now.transcript.messages
            now.transcript = Transcript(self._opening(told, now.tools), told, now.transcript.name)
        else:
            del now.transcript.messages[len(now.transcript.messages) - len(messages) - len(now.pending) :]
            now.pending = tied([*now.pending, *messages], now.calls)
            now.transcript.messages.extend(now.pending)

    def withdraw(self) -> None:
        """See `Conversation.withdraw`."""
        now = self._now
        if now.pending:
            del now.transcript.messages[-len(now.pending) :]
            now.pending = []

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, name: str = "") -> int:
        """See `Conversation.begin`."""
        messages = messages_of(messages, "Conversation.begin got")
        self._now = self._begun(messages, self.start.tools if tools is None else tools, name)
        return len(self._samples) - 1

    def resume(self, sample: int) -> None:
        """See `Conversation.resume`."""
        self._now = self._samples[sample]

    def count(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, sample: int | None = None) -> int:
        """See `Conversation.count`."""
        if self._hopeless(messages):
            what = f"the messages have {_characters(messages)} characters, and limits.tokens is {self._limits.tokens}"
            raise AgentError(what, remedy=TOO_LONG)
        if sample is None:
            return len(self._template.opening(messages, self.start.tools if tools is None else tools))
        then = self._samples[sample]
        if not then.turns:
            return len(self._template.opening([*then.transcript.messages, *messages], then.tools))
        added = self._template.increment(then.turn, tied([*then.pending, *messages], then.calls), then.tools)
        return len(then.transcript) + len(added)

    def judge(self, reward: Reward) -> None:
        """See `Conversation.judge`."""
        self.reward = reward_of(reward, "Conversation.judge got")

    def finish(self, truncated: str = "") -> NoReturn:
        """See `Conversation.finish`."""
        self._end("truncated" if truncated else "finished", truncated)

    # ------------------------------------------------------------------------------------------ what the agent reads

    def returned(self) -> None:
        """Note that the harness has returned: the conversation is over. Raises `BreachError` if the model had no turn:
        an end before it that is not the harness's has raised `ConversationFailedError` in the harness."""
        self.ended = self.ended or "finished"
        if not self.turns:
            what = "the harness ended the conversation before the model's first turn"
            what = f"{what} ({self.reason})" if self.reason else what
            raise BreachError(what, remedy="call `sample` in Harness.run")

    @property
    def transcripts(self) -> list[Transcript]:
        """The samples in which the model had a turn. The one that was used last is the last."""
        used = [each for each in self._samples if each.turns]
        if self._now in used:
            used.remove(self._now)
            used.append(self._now)
        return [each.transcript for each in used]

    @property
    def sampled(self) -> int:
        """The number of sampled tokens in all samples."""
        return sum(each.transcript.sampled for each in self._samples)

    def _opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Sequence[int]:
        """Return the tokens of the prompt."""
        if self._hopeless(messages):
            what = f"the prompt has {_characters(messages)} characters, and limits.tokens is {self._limits.tokens}"
            raise ConversationFailedError(what, remedy=TOO_LONG)
        return self._template.opening(messages, tools)

    def _begun(self, messages: Sequence[Message], tools: Sequence[Tool], name: str) -> _Sample:
        self._samples.append(_Sample(Transcript(self._opening(messages, tools), messages, name), tools))
        return self._samples[-1]

    def _hopeless(self, messages: Sequence[Message]) -> bool:
        """Return whether messages are too long for `limits.tokens`, whatever the tokenizer: to encode megabytes takes
        seconds, in which the agent's other conversations wait."""
        return _characters(messages) > self._limits.tokens * TOKEN_CHARACTERS

    def _heard(self, call: ToolCall) -> tuple[str, Sequence[ToolCall]] | None:
        """Return the text and the calls of the last turn, once, if `call` is one of its calls."""
        turn = self._unheard
        if turn is None or all(each.id != call.id for each in turn.calls):
            return None
        self._unheard = None
        return turn.content, turn.calls

    def _check(self) -> None:
        limit = self._limits.conversation_s
        if not self.ended and limit is not None and self.engine_s + self._episode.seconds > limit:
            if not self.turns:
                what = f"the environment worked {self._episode.seconds:.3g} s before the model's first turn"
                remedy = "raise limits.conversation_s, or make the environment's reset quicker"
                raise ConversationFailedError(f"{what}, and limits.conversation_s is {limit:g}", remedy=remedy)
            self._end("truncated", "seconds")
        if self.ended:
            raise EndReached(self.ended)

    def _done(self, action: str) -> None:
        """The environment has ended the episode. Without a turn of the model, it is a failure."""
        self.ended = "finished"
        if not self.turns:
            what = f"the environment ended the episode at {action}, before the model's first turn"
            raise ConversationFailedError(what, remedy="let the model have a turn before this action")

    def _full(self, tokens: int, why: str) -> NoReturn:
        """End a conversation without room for another token. Without a turn of the model, it is a failure."""
        if not self.turns:
            what = f"the prompt has {tokens} tokens, and {why}"
            raise ConversationFailedError(what, remedy=TOO_LONG)
        self._end("truncated", "tokens")

    def _end(self, how: str, reason: str = "") -> NoReturn:
        if not self.ended:
            self.ended, self.reason = how, reason
        raise EndReached(self.ended)

    def _note(self, now: _Sample, added: Sequence[int], sampled: SampledTurn, given: Mapping[str, Any]) -> None:
        now.transcript.add_context(added)
        now.transcript.add_sampled(sampled.ids, sampled.logprobs, sampled.versions)
        now.transcript.sampled_with(given)
        now.pending = []
        now.turns += 1
        self.turns += 1
        self.engine_s += sampled.seconds

    def _parsed(self, ids: Sequence[int], tools: Sequence[Tool], given: Mapping[str, Any]) -> ParsedTurn:
        """Return the meaning of a turn that was sampled with the parameters `given`."""
        if ids and ids[-1] in given["stop_token_ids"]:
            ids = ids[:-1]
        stop = given.get("stop") or ()
        if not stop:
            return self._template.parse(ids, tools)
        stops = (stop,) if isinstance(stop, str) else stop
        return self._template.parse(ids, tools, stops, given.get("min_tokens") or 0)

    def _named(self, parsed: ParsedTurn) -> ParsedTurn:
        """Return a turn all of whose calls have an id that no other call of the conversation has."""
        self.unparsed += len(parsed.unparsed)
        named: list[ToolCall] = []
        for at, call in enumerate(parsed.calls):
            if not call.id or call.id in self._ids:
                call = msgspec.structs.replace(call, id=f"call{self.turns - 1:03}{at:02}")
            self._ids.add(call.id)
            named.append(call)
        return msgspec.structs.replace(parsed, calls=named)
