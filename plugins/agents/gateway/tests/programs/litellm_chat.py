"""The same agent with LiteLLM. Arguments: `anthropic` for that API, `stream` for streams."""

import json
import sys

import litellm

name = "anthropic/claude-x" if "anthropic" in sys.argv else "openai/gpt-x"
tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}]
messages = [{"role": "user", "content": json.load(sys.stdin)["messages"][-1]["content"]}]
for _ in range(8):
    answer = litellm.completion(name, messages, tools=tools, max_tokens=64, stream="stream" in sys.argv)
    if "stream" in sys.argv:
        answer = litellm.stream_chunk_builder(list(answer), messages=messages)
    message = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        told = str(sum(json.loads(call.function.arguments).values()))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
print(message.content)
