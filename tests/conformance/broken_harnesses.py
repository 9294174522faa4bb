"""Harnesses that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from rolemesh.api.workload import RankContext
from rolemesh_agents import Conversation, ConversationFailedError, EndReached, Harness, Message, Turn

__all__ = ["BROKEN", "Sound"]


class Sound(Harness):
    """Runs the calls of each turn, and gives turns without calls to the environment."""

    async def run(self, talk: Conversation) -> None:
        while True:
            turn = await talk.sample()
            talk.append(await self.answers(talk, turn))

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        found: list[Message] = [{"role": "tool", "content": f"no call: {text}"} for text in turn.unparsed]
        for call in turn.calls:
            observation = await talk.call(call)
            found.append({"role": "tool", "tool_call_id": call.id, "content": observation.content})
        return found or list((await talk.reply(turn.content)).messages)


class Silent(Sound):
    """Lets the model say nothing."""

    async def run(self, talk: Conversation) -> None:
        talk.finish()


class Strict(Sound):
    """Raises what the model does wrong."""

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        if turn.unparsed:
            raise ValueError(turn.unparsed[0])
        return await super().answers(talk, turn)


class Random(Sound):
    """Samples at a temperature of its own each time."""

    async def run(self, talk: Conversation) -> None:
        await talk.sample({"temperature": random.random()})
        await super().run(talk)


class Counting(Sound):
    """Tells the model the number of the conversation on this disk."""

    async def setup(self, ctx: RankContext) -> None:
        self.file = Path(ctx.base, "count")

    async def run(self, talk: Conversation) -> None:
        count = self.file.read_text() if self.file.exists() else ""
        self.file.write_text(f"{count}x")
        talk.append([{"role": "user", "content": count}])
        await super().run(talk)


class Stubborn(Sound):
    """Asks the model for a last word."""

    async def run(self, talk: Conversation) -> None:
        try:
            await super().run(talk)
        except EndReached:
            await talk.sample()


class Hiding(Sound):
    """Ends a conversation that cannot go on as if it were finished."""

    async def run(self, talk: Conversation) -> None:
        try:
            await super().run(talk)
        except ConversationFailedError:
            return


class Repeating(Sound):
    """Appends the turns of the model."""

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        own: list[Message] = [{"role": "assistant", "content": turn.content}]
        return own + await super().answers(talk, turn)


class Correcting(Sound):
    """Changes the last token."""

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        turn.ids[-1] = 0  # type: ignore[index]
        return await super().answers(talk, turn)


class Mixing(Sound):
    """Keeps the turn of the last conversation."""

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        self.turn = turn
        await asyncio.sleep(0)
        return await super().answers(talk, self.turn)


class Breaking(Sound):
    """Makes an error of a cancellation."""

    async def run(self, talk: Conversation) -> None:
        try:
            await super().run(talk)
        except asyncio.CancelledError:
            raise RuntimeError("cancelled") from None


class Watching(Sound):
    """Watches each conversation in a task that it never ends."""

    async def run(self, talk: Conversation) -> None:
        self.task = asyncio.create_task(asyncio.sleep(60))
        await super().run(talk)


class Outliving(Sound):
    """Starts a program, and ends it when the conversation is over only."""

    async def run(self, talk: Conversation) -> None:
        program = await asyncio.create_subprocess_exec("sleep", "60")
        try:
            await super().run(talk)
        finally:
            program.kill()
            await program.wait()


TOKENS = "test_the_tokens_of_the_model_stay_as_they_are"

BROKEN: dict[type[Harness], set[str]] = {
    Silent: {"test_it_holds_conversations_to_their_end"},
    Strict: {"test_turns_that_no_model_should_take_are_no_errors"},
    Random: {"test_the_same_answers_have_the_same_calls"},
    Counting: {"test_a_killed_conversation_makes_the_same_calls_again"},
    Stubborn: {"test_the_end_of_a_conversation_passes"},
    Hiding: {"test_a_failure_passes"},
    Repeating: {TOKENS},
    Correcting: {TOKENS},
    Mixing: {"test_conversations_at_the_same_time_are_independent"},
    Breaking: {"test_a_cancelled_conversation_ends"},
    Watching: {"test_nothing_is_left_after_close"},
    Outliving: {"test_no_process_survives_a_kill"},
}
