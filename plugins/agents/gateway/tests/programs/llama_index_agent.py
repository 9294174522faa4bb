"""The same agent with LlamaIndex, whose agents ask in streams."""

import asyncio
import json
import os
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def main():
    model = OpenAI(model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
    agent = FunctionAgent(tools=[add], llm=model, system_prompt="Add.")
    return await agent.run(json.load(sys.stdin)["messages"][-1]["content"])


print(asyncio.run(main()))
