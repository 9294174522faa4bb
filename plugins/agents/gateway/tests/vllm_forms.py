"""The answers of three APIs in one form, with and without a stream: content, reasoning, calls, end and stop text."""

from __future__ import annotations

import json
from typing import Any

APIS = ("chat", "messages", "responses")
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def path_of(api: str) -> str:
    """The path of an API; ``chat stream`` is the same with a stream."""
    return PATHS[api.partition(" ")[0]]


def body_of(
    api: str, tools: list[dict[str, Any]], *, choice: str = "", stop: list[str] | None = None, most: int = 1000
) -> dict[str, Any]:
    """A request for one turn. `tools`: each with name and schema."""
    kind, _, stream = api.partition(" ")
    body: dict[str, Any] = {"model": "m", "temperature": 0.0, **({"stream": True} if stream else {})}
    asked = [{"role": "user", "content": "begin"}]
    if kind == "responses":
        body |= {"input": "begin", "max_output_tokens": most, "store": False}
        body |= {"tools": [{"type": "function", "description": "d", **each} for each in tools]} if tools else {}
        return body | ({"tool_choice": choice} if choice else {})
    body |= {"messages": asked, "max_tokens": most}
    if kind == "messages":
        about = [{"name": t["name"], "description": "d", "input_schema": t["parameters"]} for t in tools]
        body |= {"tools": about} if tools else {}
        body |= {"tool_choice": {"type": choice}} if choice else {}
        return body | ({"stop_sequences": stop} if stop else {})
    body |= (
        {"tools": [{"type": "function", "function": {"description": "d", **each}} for each in tools]} if tools else {}
    )
    return body | ({"tool_choice": choice} if choice else {}) | ({"stop": stop} if stop else {})


def read(api: str, status: int, text: str) -> dict[str, Any]:
    """Return the answer in one form. `end` is "stop", "length" or "calls"; an error has its text in `error`."""
    kind, _, stream = api.partition(" ")
    if status != 200:
        return {"error": f"{status}: {text[:300]}"}
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"] if stream else []
    if stream:
        return {"chat": _chat_stream, "messages": _messages_stream, "responses": _responses_stream}[kind](events)
    return {"chat": _chat, "messages": _messages, "responses": _responses}[kind](json.loads(text))


def _form(content: str, reasoning: str, calls: list[tuple[str, str]], end: Any, stop: Any = None) -> dict[str, Any]:
    listed = [[name, _arguments(text)] for name, text in calls]
    return {"content": content, "reasoning": reasoning, "calls": listed, "end": end, "stop": stop or ""}


def _arguments(text: str) -> Any:
    """Return arguments, or their text if they are no JSON: vLLM's streams end some of them in the middle."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


ENDS = {
    "stop": "stop", "length": "length", "tool_calls": "calls", "end_turn": "stop", "max_tokens": "length",
    "tool_use": "calls", "stop_sequence": "stop", "completed": "stop", "incomplete": "length",
}  # fmt: skip


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    thought = message.get("reasoning") or ""
    return _form(message.get("content") or "", thought, calls, ENDS[choice["finish_reason"]])


def _chat_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    content = reasoning = end = ""
    calls: dict[int, list[str]] = {}
    for event in events:
        if "error" in event:
            return {"error": str(event["error"])[:300]}
        for choice in event["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning") or ""
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], ["", ""])
                call[0] += piece["function"].get("name") or ""
                call[1] += piece["function"].get("arguments") or ""
            end = choice.get("finish_reason") or end
    return _form(content, reasoning, [(name, text) for name, text in calls.values()], ENDS[end])


def _blocks(blocks: list[dict[str, Any]], reason: str, stop: Any) -> dict[str, Any]:
    content = "".join(each["text"] for each in blocks if each["type"] == "text")
    reasoning = "".join(each["thinking"] for each in blocks if each["type"] == "thinking")
    calls = [(each["name"], json.dumps(each["input"])) for each in blocks if each["type"] == "tool_use"]
    return _form(content, reasoning, calls, ENDS[reason], stop)


def _messages(body: dict[str, Any]) -> dict[str, Any]:
    return _blocks(body["content"], body["stop_reason"], body.get("stop_sequence"))


def _messages_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    reason, stop = "", None
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "said": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking", "partial_json"):
                blocks[-1]["said"] += delta.get(name) or ""
        elif event["type"] == "message_delta":
            reason, stop = event["delta"]["stop_reason"], event["delta"].get("stop_sequence")
        elif event["type"] == "error":
            return {"error": str(event)[:300]}
    for block in blocks:
        kind = block["type"]
        block |= {"input": _arguments(block["said"])} if kind == "tool_use" else {kind: block["said"]}
    return _blocks(blocks, reason, stop)


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    content = reasoning = ""
    calls = []
    for item in body["output"]:
        if item["type"] == "message":
            content += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            reasoning += "".join(part["text"] for part in item.get("content") or ())
        else:
            calls.append((item["name"], item["arguments"]))
    end = "calls" if calls and body["status"] == "completed" else ENDS[body["status"]]
    return _form(content, reasoning, calls, end)


def _responses_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    content = reasoning = ""
    calls: dict[int, list[str]] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_text.delta":
            content += event["delta"]
        elif kind == "response.reasoning_text.delta":
            reasoning += event["delta"]
        elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            calls[event["output_index"]] = [event["item"]["name"], ""]
        elif kind == "response.function_call_arguments.delta":
            calls[event["output_index"]][1] += event["delta"]
        elif kind in ("error", "response.failed"):
            return {"error": str(event)[:300]}
    status = events[-1]["response"]["status"]
    end = "calls" if calls and status == "completed" else ENDS[status]
    return _form(content, reasoning, [(name, text) for name, text in calls.values()], end)
