"""One conversation: takes the program's requests from the desk, and makes the calls of the `Conversation` for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec

from rolemesh_agents import (
    AgentError,
    Conversation,
    ConversationFailedError,
    EndReached,
    Message,
    Observation,
    Reward,
    ToolCall,
)
from rolemesh_gateway.contexts import Begin, Contexts, Continue, Repeat
from rolemesh_gateway.desk import Counts, Desk, Exchange, Work
from rolemesh_gateway.programs import ProgramResult
from rolemesh_gateway.references import resolved
from rolemesh_gateway.requests import NO_PREVIOUS, Answer, Ask, Count, Find, Kept, RefusedError

__all__ = ["Dialogue"]

T = TypeVar("T")
KEPT = 64
"""Number of answers that a request may continue or read by id."""
NAMES = 64
"""Number of ignored parameters that the gateway notes, and number of characters of each name."""


class Dialogue:
    """The gateway's side of one conversation.

    It works on one request after the other, in the order in which they have come. The calls of a request are made in a
    task of its own, so that the desk can cancel them if the client goes away. The conversation makes no other tasks: a
    request that is answered without a call has none. The numbers of the calls thus depend on what the program asks for.
    How often its client loses an answer has no effect on them; that differs in each life of the rank.
    """

    def __init__(self, talk: Conversation, desk: Desk, takes: Sequence[str], may_judge: bool) -> None:
        self._talk = talk
        self._desk = desk
        self._takes = takes
        self._may_judge = may_judge
        self._contexts = Contexts(talk.start.messages, talk.start.tools)
        self._answers: list[Answer] = []
        self._kept: dict[str, Kept] = {}
        """The last answers that requests may continue or read, by their ids."""
        self._seen: dict[str, tuple[ToolCall, Observation]] = {}
        """The last calls that the model had asked for, with what they returned, by the model's ids."""
        self._last: dict[int, Answer] = {}
        """The last answer in each sample."""
        self._sample = 0
        self.counts = Counts()
        self.reward: Reward | None = None
        """The reward that the program has set."""
        self.ended: EndReached | None = None
        """The signal that ended the conversation before the program's end."""
        self.ignored: set[str] = set()
        """The parameters of requests that had no effect."""
        self.breaks: list[str] = []
        """The reasons why requests began a new sample."""

    @property
    def last(self) -> str:
        """The text of the last turn of the model."""
        return self._answers[-1].content if self._answers else ""

    async def run(self, on_over: Callable[[], None]) -> ProgramResult:
        """Answer requests until the program has ended, and return its result.

        Calls `on_over` once if the conversation is over before. Raises the conversation's errors, except `EndReached`.
        """
        while True:
            found = await self._desk.take()
            if isinstance(found, ProgramResult):
                return found
            before = self.ended
            await self._exchange(found)
            # A conversation that waits does not hold the whole history of its last request.
            del found
            self._contexts.forget()
            if self.ended is not before:
                on_over()

    async def _exchange(self, exchange: Exchange) -> None:
        try:
            answer, calls = self._begun(exchange.work)
            if calls is not None:
                task = asyncio.ensure_future(calls)
                self._desk.begins(exchange, task)
                answer = await task
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if mine is not None and mine.cancelling():
                # The rank cancels the conversation itself; the desk cancels only the task of a request.
                raise
            self.counts.cancelled += 1
        except RefusedError as error:
            self._desk.failed(exchange, error)
        except EndReached as signal:
            self.ended = self.ended or signal
            self._desk.failed(exchange, _over())
        except BaseException:
            failure = RefusedError(500, "the conversation has failed, and ends", code="conversation_failed")
            self._desk.failed(exchange, failure)
            raise
        else:
            self._desk.answered(exchange, answer)

    def _begun(self, work: Work) -> tuple[Answer | Observation | Kept | int | None, Coroutine[Any, Any, Any] | None]:
        """Return the answer to a request; or None, and the coroutine that makes its calls and returns the answer."""
        if isinstance(work, Reward):
            self._judge(work)
            return None, None
        if isinstance(work, Find):
            return (self._kept.pop(work.name, None) if work.forget else self._kept.get(work.name)), None
        if self.ended is not None:
            raise _over()
        if isinstance(work, ToolCall):
            made = self._seen.get(work.id)
            if made is None or made[0] != work:
                return None, self._call(work)
            self.counts.repeated += 1
            return made[1], None
        if isinstance(work, Count):
            return self._count(work.ask), None
        return self._turn(work)

    async def _call(self, work: ToolCall) -> Observation:
        seen = await self._talk.call(work)
        if any(call.id == work.id for answer in self._answers for call in answer.calls):
            self._seen[work.id] = work, seen
            if len(self._seen) > KEPT:
                del self._seen[next(iter(self._seen))]
        return seen

    def _judge(self, reward: Reward) -> None:
        if not self._may_judge:
            raise RefusedError(409, "the job file does not let the program set its reward", code="reward_refused")
        self.reward = reward

    def _turn(self, ask: Ask) -> tuple[Answer | None, Coroutine[Any, Any, Answer] | None]:
        params = {name: value for name, value in ask.params.items() if name in self._takes}
        if ask.tools and ask.calls:
            # The model may call a tool, and a form would forbid it.
            params.pop("structured_outputs", None)
        left = (ask.names.get(name, name) for name in ask.params.keys() - params.keys())
        ignored = sorted({*ask.unknown, *left})[:NAMES]
        self._note(ignored)
        ask, earlier = self._whole(ask)
        messages = [*ask.lead, *earlier, *ask.messages]
        place = self._contexts.place(messages, ask.tools, ask.again)
        if isinstance(place, Repeat):
            self.counts.repeated += 1
            return self._answers[place.number], None
        return None, self._sampled(ask, messages, place, params, ignored)

    async def _sampled(
        self,
        ask: Ask,
        messages: Sequence[Message],
        place: Continue | Begin,
        params: Mapping[str, Any],
        ignored: Sequence[str],
    ) -> Answer:
        """Sample the turn that answers a request with all these `messages`."""
        try:
            if isinstance(place, Continue):
                self._continue(place, messages)
            else:
                self._begin(messages, ask, place.reason)
            turn = await self._talk.sample(params)
        except ConversationFailedError:
            raise
        except (asyncio.CancelledError, AgentError) as error:
            # The model has not seen these messages, so the next request may ask for something else.
            if isinstance(place, Continue) and place.new:
                self._talk.withdraw()
            if isinstance(error, AgentError):
                raise _refusal(error) from error
            raise
        number = len(self._answers)
        # As vLLM's server: a turn with a call that nobody can read is a text.
        called = ask.calls and not turn.unparsed
        calls, content = (turn.calls, turn.content) if called else ((), turn.text or turn.content)
        finish = "length" if turn.finish == "length" else "calls" if calls else "stop"
        counts = turn.prompt_tokens, len(turn.ids)
        answer = Answer(number, content, calls, finish, turn.stop, *counts, ignored, turn.reasoning)
        self._answers.append(answer)
        self._last[self._sample] = answer
        self.counts.turns += 1
        self._contexts.answered(self._sample, messages, answer.as_message(), number, turn.stop)
        if ask.kept_as:
            self._keep(ask, answer, messages[len(ask.lead) :])
        return answer

    def _keep(self, ask: Ask, answer: Answer, messages: Sequence[Message]) -> None:
        """Keep an answer. Clients send the whole history with each request, so equal parts are shared with the answer
        before."""
        before = next(reversed(self._kept.values()), None)
        told, echo, tools = messages, ask.echo, ask.tools
        if before is not None:
            told = [shared(each, other) for each, other in zip_longest(messages, before.messages[: len(messages)])]
            echo = {name: shared(value, before.ask.echo.get(name)) for name, value in echo.items()}
            tools = shared(tools, before.tools)
        bare = msgspec.structs.replace(ask, messages=(), lead=(), tools=tools, echo=echo)
        self._kept[f"{ask.kept_as}{answer.number}"] = Kept(bare, answer, (*told, answer.as_message()), tools)
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def _count(self, ask: Ask) -> int:
        ask, earlier = self._whole(ask)
        messages = [*ask.lead, *earlier, *ask.messages]
        place = self._contexts.place(messages, ask.tools)
        try:
            if isinstance(place, Continue):
                return self._talk.count(self._named(place, messages), None, place.sample)
            return self._talk.count(messages, ask.tools)
        except AgentError as error:
            raise _refusal(error) from error

    def _note(self, ignored: Sequence[str]) -> None:
        """Remember parameters without an effect, up to a number, since programs may make up any names."""
        for name in ignored:
            if len(self.ignored) < NAMES:
                self.ignored.add(name[:NAMES])

    def _continue(self, place: Continue, messages: Sequence[Message]) -> None:
        if place.sample != self._sample:
            self._talk.resume(place.sample)
            self._sample = place.sample
        if place.new:
            self._talk.append(self._named(place, messages))

    def _named(self, place: Continue, messages: Sequence[Message]) -> list[Message]:
        """Return the new messages with the model's ids of its calls: some clients give them others in the history."""
        answer = self._last.get(place.sample)
        before = messages[: len(messages) - len(place.new)][-1:]
        told = [call.get("id") for each in before for call in each.get("tool_calls") or ()]
        ids = dict(zip(told, (call.id for call in answer.calls), strict=False)) if answer is not None else {}
        own = [ids.get(each.get("tool_call_id")) for each in place.new]
        return [{**m, "tool_call_id": i} if i else m for m, i in zip(place.new, own, strict=True)]

    def _begin(self, messages: Sequence[Message], ask: Ask, reason: str) -> None:
        self._sample = self._talk.begin(messages, ask.tools)
        self._contexts.began(self._sample, messages, ask.tools)
        self.counts.begun += 1
        if reason:
            self.breaks.append(reason)

    def _whole(self, ask: Ask) -> tuple[Ask, Sequence[Message]]:
        """Return the request with its tools and without references, and the messages before those of the request."""
        if ask.refers:
            ask = msgspec.structs.replace(ask, messages=resolved(ask.messages, self._answers))
        if not ask.previous:
            return ask, ()
        if ask.previous not in self._kept:
            name = "previous_message_id" if ask.inherits else "previous_response_id"
            raise RefusedError(400, f"{name}: there is no answer {ask.previous!r}", param=name, code=NO_PREVIOUS)
        kept = self._kept[ask.previous]
        tools = kept.tools if ask.inherits and not ask.tools else ask.tools
        return msgspec.structs.replace(ask, tools=tools), kept.messages


def shared(value: T, before: Any) -> T:
    """Return `before` if it is equal to `value` in every digit, so that only one of both stays in memory."""
    same: bool = value == before and repr(value) == repr(before)
    return before if same else value


def _refusal(error: AgentError) -> Exception:
    """The chat template refuses the messages. This is the program's mistake, and its conversation goes on."""
    return error if isinstance(error, ConversationFailedError) else RefusedError(400, error.what, param="messages")


def _over() -> RefusedError:
    reason = "the conversation is over: a limit is reached, or the environment is done"
    return RefusedError(400, reason, code="conversation_over")
