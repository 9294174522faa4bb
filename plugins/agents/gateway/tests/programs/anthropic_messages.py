"""The same agent with the client of Anthropic."""

import json
import sys

import anthropic

client = anthropic.Anthropic()
tools = [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]
messages = [{"role": "user", "content": json.load(sys.stdin)["messages"][-1]["content"]}]
for _ in range(8):
    answer = client.messages.create(model="claude-x", max_tokens=64, messages=messages, tools=tools)
    messages.append({"role": "assistant", "content": answer.content})
    uses = [block for block in answer.content if block.type == "tool_use"]
    if not uses:
        break
    told = [{"type": "tool_result", "tool_use_id": u.id, "content": str(sum(u.input.values()))} for u in uses]
    messages.append({"role": "user", "content": told})
print(answer.content[0].text)
