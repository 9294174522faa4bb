"""The same agent with AutoGen. Its messages have names, and the environment's question is one of them."""

import asyncio
import json
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def main():
    model = OpenAIChatCompletionClient(model="gpt-4o", base_url=os.environ["OPENAI_BASE_URL"])
    agent = AssistantAgent("adder", model, tools=[add], max_tool_iterations=8, model_client_stream="stream" in sys.argv)
    found = await agent.run(task=json.load(sys.stdin)["messages"][-1]["content"])
    return found.messages[-1].content


print(asyncio.run(main()))
