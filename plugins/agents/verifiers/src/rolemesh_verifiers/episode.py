"""An episode of verifiers for a conversation of rolemesh: requests become messages, and turns their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rolemesh_agents import AgentError, Episode, Message, Observation, Outcome, Reward, Start, Task, ToolCall
from rolemesh_verifiers.messages import Asked, added, spoken
from rolemesh_verifiers.options import VerifiersOptions
from rolemesh_verifiers.play import Play
from rolemesh_verifiers.serving import Serving

__all__ = ["VerifiersEpisode"]

T = TypeVar("T")
CLOSE_S = 30.0
"""Seconds that verifiers has to end an episode."""
ENDED = "The task is over."


class VerifiersEpisode(Episode):
    """One episode. It is restored by repeating its actions.

    The environment gets a whole turn of the model, with its text, at the first of its calls. It runs all calls then.
    All episodes of a rank share a thread, servers and a desk. Their rewards are judged in processes; see `apart`.
    """

    own_process = False

    def __init__(self, serving: Serving, options: VerifiersOptions) -> None:
        self._serving, self._options = serving, options
        self._where = options.name
        self._play: Play | None = None
        self._asked = Asked((), ())
        self._turns = 0
        self._over = self._late = False
        self._heard: tuple[str, Sequence[ToolCall]] | None = None
        self._answers: dict[str, Observation] = {}
        """The answers to the further calls of the last turn, by the ids of these."""

    async def reset(self, task: Task, seed: int) -> Start:
        """See `Episode.reset`."""
        return await self._in_thread(self._begin(task))

    def hear(self, content: str, calls: Sequence[ToolCall]) -> None:
        """See `Episode.hear`."""
        self._heard = content, calls
        self._answers = {}

    async def call(self, call: ToolCall) -> Observation:
        """See `Episode.call`. It ends the episode if the environment asks for no other turn."""
        if call.id not in self._answers:
            content, calls = self._heard or ("", [call])
            self._heard = None
            answers = await self._in_thread(self._called(content, calls))
            self._answers |= {each.id: answer for each, answer in zip(calls, answers, strict=True)}
        return self._answers.pop(call.id)

    async def reply(self, content: str) -> Outcome:
        """See `Episode.reply`."""
        found = await self._in_thread(self._taken(spoken(content, (), self._turns)))
        return Outcome() if found is None else Outcome(found, done=False)

    async def reward(self) -> Reward:
        """See `Episode.reward`. verifiers judges what it has seen: a turn that a limit has cut is not part of it."""
        return await self._in_thread(self._judged())

    def close(self) -> None:
        """See `Episode.close`."""
        if self._play is not None:
            self._serving.run(self._play.close()).result(CLOSE_S)

    async def _begin(self, task: Task) -> Start:
        index, split = task.data["index"], task.split
        self._where = f"{self._options.name}, row {index} (task {task.number} of the split {split})"
        found, content = await self._serving.task(split, index)
        if content != task.data["hash"]:
            what = f"task {index} of verifiers differs from the one that the role `tasks` has dealt out"
            remedy = (
                "if it draws its tasks at random, give it a seed in its settings; else use one version of its package "
                "and of its data in both roles"
            )
            raise AgentError(what, remedy=remedy)
        self._play = await self._serving.play(split)
        self._play.start(found)
        first = await self._play.next()
        if first is None:
            await self._judged()
            raise AgentError("the environment has ended before the model's first turn", remedy="see its log")
        self._asked = first
        return Start(first.messages, first.tools)

    async def _called(self, content: str, calls: Sequence[ToolCall]) -> list[Observation]:
        if not self._asked.tools:  # a server without tools would not have told verifiers of a call
            return [Observation(f"there is no tool {call.name!r}, and no other one") for call in calls]
        turn = spoken(content, calls, self._turns)
        found = await self._taken(turn)
        if found is None:
            return [Observation(ENDED, done=True)] * len(calls)
        told = {message["tool_call_id"]: message["content"] for message in found if message["role"] == "tool"}
        if len(told) < len(found):
            raise AgentError(
                "the environment tells the model more than the answers of its tools",
                remedy="let the user of the environment speak after a turn without calls",
            )
        return [Observation(told.get(each["id"], "")) for each in turn["tool_calls"]]

    async def _taken(self, turn: Message) -> list[Message] | None:
        """Give a turn to the environment, and return what it says; None: it is over."""
        assert self._play is not None
        if self._late:
            what = "a tool of the environment has been late, and verifiers cannot go on without its answer"
            raise AgentError(what, remedy="raise limits.call_s of the agent")
        if self._over:
            return None
        self._turns += 1
        self._play.answer(turn)
        now = await self._play.next()
        if now is None:
            self._over = True
            return None
        found = added(self._asked, turn, now)
        self._asked = now
        return found

    async def _judged(self) -> Reward:
        if self._play is None:
            raise AgentError("the episode has not begun", remedy="call reset first")
        return await self._play.reward(self._options.success)

    async def _in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wrap_future(self._serving.run(work))
        except asyncio.CancelledError:
            self._late = True
            raise
        except AgentError as error:
            error.where = error.where or self._where
            raise
