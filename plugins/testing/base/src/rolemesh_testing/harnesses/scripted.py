"""A conversation that follows a script, and notes how the harness uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NoReturn

import msgspec

from rolemesh_agents import ConversationFailedError, EndReached, Message, Observation, Outcome, Reward, Tool, ToolCall
from rolemesh_agents import Turn as ModelTurn
from rolemesh_testing.harnesses.scripts import turn
from rolemesh_testing.harnesses.wire import Order

__all__ = ["ScriptedConversation"]

LAST, OK = turn("done."), Observation("ok")
MOST = 200
"""Number of calls after which the kit ends a conversation, because it would not end."""
ROLES = ("system", "developer", "user", "tool")


class ScriptedConversation:
    """Implements `rolemesh_agents.Conversation`. `note` gets each call as a text, before it is answered."""

    def __init__(self, order: Order, note: Callable[[str], None]) -> None:
        self.number, self.seed, self.start = order.number, order.seed, order.script.start
        self.calls: list[str] = []
        self.wrong: list[str] = []
        self.samples = 0
        self.cancel: Callable[[], object] = lambda: None
        """Cancels the task of the conversation."""
        self._order, self._note, self._over = order, note, ""
        self._tools = self._replies = 0
        self._begun = 1
        self._given: list[tuple[ModelTurn, list[int]]] = []

    async def sample(self, params: Mapping[str, Any] = {}) -> ModelTurn:
        """See `Conversation.sample`."""
        await self._called("sample", dict(params))
        turns = self._order.script.turns
        found = turns[self.samples] if self.samples < len(turns) else LAST
        self.samples += 1
        ids = list(found.ids)
        self._given.append((msgspec.structs.replace(found, ids=ids, calls=list(found.calls)), [*ids]))
        return self._given[-1][0]

    async def call(self, call: ToolCall) -> Observation:
        """See `Conversation.call`."""
        await self._called("call", call)
        answers = self._order.script.observations
        answer = answers[self._tools] if self._tools < len(answers) else OK
        self._tools += 1
        self._ends(answer.done)
        return answer

    async def reply(self, content: str) -> Outcome:
        """See `Conversation.reply`."""
        await self._called("reply", content)
        answers = self._order.script.outcomes
        answer = answers[self._replies] if self._replies < len(answers) else Outcome()
        self._replies += 1
        self._ends(answer.done)
        return answer

    def append(self, messages: Sequence[Message]) -> None:
        """See `Conversation.append`."""
        self._used("append", list(messages))
        for message in messages:
            if message.get("role") not in ROLES:
                self.wrong.append(
                    f"append() has a message with the role {message.get('role')!r}: a turn of the model is in the "
                    "conversation already, with the tokens that were sampled"
                )

    def withdraw(self) -> None:
        """See `Conversation.withdraw`."""
        self._used("withdraw", None)

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, name: str = "") -> int:
        """See `Conversation.begin`."""
        self._used("begin", [list(messages), None if tools is None else list(tools), name])
        self._begun += 1
        return self._begun - 1

    def resume(self, sample: int) -> None:
        """See `Conversation.resume`."""
        self._used("resume", sample)
        if not 0 <= sample < self._begun:
            self.wrong.append(f"resume({sample}): there are {self._begun} samples")

    def count(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, sample: int | None = None) -> int:
        """See `Conversation.count`."""
        return sum(len(str(each.get("content"))) for each in messages)

    def judge(self, reward: Reward) -> None:
        """See `Conversation.judge`."""
        self._write("judge", reward)

    def finish(self, truncated: str = "") -> NoReturn:
        """See `Conversation.finish`."""
        self._used("finish", truncated)
        self._over = "finish()"
        raise EndReached("finished")

    def checked(self) -> Sequence[str]:
        """Return what was wrong in the whole conversation."""
        changed = any([*given.ids] != before for given, before in self._given)
        return (*self.wrong, "it has changed the tokens of a turn") if changed else tuple(self.wrong)

    def _ends(self, done: bool) -> None:
        if done:
            self._over = "the end of the episode"

    async def _called(self, method: str, given: Any) -> None:
        """Note a call that waits, and let other tasks run for a while, as if the answer took time."""
        at = len(self.calls)
        self._used(method, given)
        if self._order.hangs_at is not None and at >= self._order.hangs_at:
            await asyncio.Event().wait()
        if self._order.cancelled_at is not None and at >= self._order.cancelled_at:
            self.cancel()
        for _ in range(Random(f"{self.number} {at}").randrange(1, 4)):
            await asyncio.sleep(0)

    def _used(self, method: str, given: Any) -> None:
        """Note a call. Raises `EndReached` and `ConversationFailedError` where the order asks for it."""
        order, at = self._order, len(self.calls)
        if self._over:
            if self._over == "EndReached":
                self.wrong.append(f"{method}() after EndReached; let it pass")
            self._over = "EndReached"
            raise EndReached("finished")
        self._write(method, given)
        if at >= MOST:
            self.wrong.append(f"it has not ended after {MOST} calls")
        if at >= MOST or (order.over_at is not None and at >= order.over_at):
            self._over = "EndReached"
            raise EndReached("truncated")
        if order.fails_at is not None and at >= order.fails_at:
            self._over = "EndReached"
            raise ConversationFailedError("the kit lets the conversation fail here", remedy="let this error pass")

    def _write(self, method: str, given: Any) -> None:
        plain = json.dumps([method, msgspec.to_builtins(given)], sort_keys=True)
        self.calls.append(plain)
        self._note(f"{self.number} {plain}")
