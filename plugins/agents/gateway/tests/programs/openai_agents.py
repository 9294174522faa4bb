"""The same agent with the Agents SDK of OpenAI. Arguments: `chat` for Chat Completions, `stream` for streams."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def main():
    agent = Agent(name="adder", instructions="Add.", tools=[add], model="gpt-x")
    question = json.load(sys.stdin)["messages"][-1]["content"]
    if "stream" not in sys.argv:
        return await Runner.run(agent, question)
    found = Runner.run_streamed(agent, question)
    async for _ in found.stream_events():
        pass
    return found


set_tracing_disabled(True)
if "chat" in sys.argv:
    set_default_openai_api("chat_completions")
print(asyncio.run(main()).final_output)
