"""The same agent with the tool runner of Anthropic's client, which sends only what is new in each request."""

import json
import sys

import anthropic


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """Adds.

    Args:
        a: the first number
        b: the second number
    """
    return str(a + b)


question = json.load(sys.stdin)["messages"][-1]["content"]
runner = anthropic.Anthropic().beta.messages.tool_runner(
    model="claude-x", max_tokens=64, tools=[add], messages=[{"role": "user", "content": question}], max_iterations=8
)
print(runner.until_done().content[0].text)
