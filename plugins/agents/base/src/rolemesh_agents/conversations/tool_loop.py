"""The default harness: the model calls tools until it answers without a call."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_agents.actions import Message
from rolemesh_agents.harness import Conversation, Harness, Turn

__all__ = ["ToolLoop"]


class ToolLoop(Harness):
    """Runs the calls of each turn one after the other, and gives the model their answers.

    A call that cannot be read is answered with the format's error. A turn without calls goes to the environment, which
    ends the episode or answers with messages. A turn that reaches its limit of tokens ends the conversation as
    truncated.
    """

    async def run(self, talk: Conversation) -> None:
        """See `Harness.run`."""
        while True:
            turn = await talk.sample()
            if turn.finish == "length":
                talk.finish("turn_tokens")
            if turn.calls or turn.unparsed:
                answers = await self._answers(talk, turn)
            else:
                answers = list((await talk.reply(turn.content)).messages)
            talk.append(answers)

    async def _answers(self, talk: Conversation, turn: Turn) -> Sequence[Message]:
        found: list[Message] = []
        for call in turn.calls:
            answer = await talk.call(call)
            found.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": answer.content})
        for text in turn.unparsed:
            content = f"This is no valid call of a tool: {text[:200]}"
            found.append({"role": "tool", "tool_call_id": "", "name": "", "content": content})
        return found
