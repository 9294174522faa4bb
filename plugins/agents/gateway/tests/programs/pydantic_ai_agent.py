"""The same agent with pydantic-ai. Arguments: a model with its API (`openai-chat:gpt-x`); `stream` for streams."""

import asyncio
import json
import sys

from pydantic_ai import Agent

agent = Agent(sys.argv[1], instructions="Add.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def main():
    question = json.load(sys.stdin)["messages"][-1]["content"]
    if "stream" not in sys.argv:
        return (await agent.run(question)).output
    async with agent.run_stream(question) as found:
        return await found.get_output()


print(asyncio.run(main()))
