"""The harness: the model calls tools, answers, checks its answer, and only then the environment gets it."""

from pydantic import BaseModel, Field
from rolemesh_agents import Conversation, Harness, Message, Turn

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Harness):
    """Lets the model check each answer `checks` times.

    Calls of tools, also in checks, are run one after the other. A call that cannot be read is answered with a hint.
    """

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        checks: int = Field(default=1, ge=0, description="How often the model checks an answer.")
        text: str = Field(default="Check this, and give your last answer.", description="What asks for a check.")

    options: Options

    async def run(self, talk: Conversation) -> None:
        """Hold one conversation. `EndReached` ends it, wherever it comes from."""
        checked = 0
        while True:
            turn = await talk.sample()
            if turn.finish == "length":
                talk.finish("the turn is too long")
            if turn.calls or turn.unparsed:
                talk.append(await self.answers(talk, turn))
            elif checked < self.options.checks:
                checked += 1
                talk.append([{"role": "user", "content": self.options.text}])
            else:
                checked = 0
                talk.append((await talk.reply(turn.content)).messages)

    async def answers(self, talk: Conversation, turn: Turn) -> list[Message]:
        """The answers to the calls of a turn."""
        found: list[Message] = []
        for call in turn.calls:
            answer = await talk.call(call)
            found.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": answer.content})
        for text in turn.unparsed:
            found.append({"role": "tool", "tool_call_id": "", "name": "", "content": f"no valid call: {text[:200]}"})
        return found
