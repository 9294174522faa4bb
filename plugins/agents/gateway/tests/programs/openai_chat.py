"""An agent with the client of OpenAI that knows nothing of rolemesh: it adds numbers with a tool."""

import json
import sys

import openai

client = openai.OpenAI()
tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
messages = [{"role": "user", "content": json.load(sys.stdin)["messages"][-1]["content"]}]
for _ in range(8):
    answer = client.chat.completions.create(model="gpt-x", messages=messages, tools=tools).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        told = str(sum(json.loads(call.function.arguments).values()))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
print(answer.content)
