"""The turns for which vLLM's server and the gateway are compared: what the model samples, and what the request says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

TEXT = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"q": TEXT, "year": {"anyOf": [TEXT, {"type": "null"}]}}}
TOOLS = [{"name": name, "parameters": SCHEMA} for name in ("search", "look")]
THOUGHT = "<think>\nI think.\n</think>\n\n"
CODE = "    if n < 2:\n        return n\n    return f(n - 1)\n"
PERSON = '{"name": "Alice", "age": 30}'
PARSERS = {
    "deepseek_v3_1": "deepseek_v31", "gemma": "hermes", "gemma4": "gemma4", "glm4moe": "glm45", "granite3_3": "granite",
    "hermes3": "hermes", "kimi_k2": "kimi_k2", "lfm2": "lfm2", "llama3_1": "llama3_json", "mistral_nemo": "mistral",
    "phi3_5": "hermes", "qwen2_5": "hermes", "qwen3": "hermes", "qwen3_coder": "qwen3_coder", "smollm2": "hermes",
}  # fmt: skip
"""vLLM's parser of calls for each chat template. GPT-OSS has none here: its parser reads OpenAI's own vocabulary."""
REASONING = {"gemma4": "gemma4", "glm4moe": "glm45", "qwen2_5": "deepseek_r1", "qwen3": "qwen3"}
"""vLLM's parser of reasoning, for the agent's option ``reasoning: apart``."""
ALWAYS = ("gemma4",)
"""Templates whose reasoning is always apart."""
APIS = ("chat", "chat stream", "messages", "messages stream", "responses", "responses stream")


class Case(msgspec.Struct, frozen=True):
    """One turn. `said`: the text of its tokens. `tools`: whether the request offers any. `most`: the limit of tokens;
    None: no limit that matters."""

    name: str
    said: str
    tools: bool = True
    choice: str = ""
    stop: tuple[str, ...] = ()
    most: int | None = None
    apart: bool = False


def written(template: Any, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return calls as the chat template writes them."""
    from rolemesh_agents import Tool, ToolCall

    if not template.abilities.calls:
        return str(template.form.write([ToolCall(name, about) for name, about in calls]))
    tools = [Tool(each["name"], "d", each["parameters"]) for each in TOOLS]
    asked: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    listed = [
        {"id": f"call{n:05}", "type": "function", "function": {"name": name, "arguments": about}}
        for n, (name, about) in enumerate(calls)
    ]
    prompt = template.whole(asked, tools, prompt=True).removesuffix("<|channel>thought\n<channel|>")  # Gemma's
    text = template.whole([*asked, {"role": "assistant", "content": "", "tool_calls": listed}], tools)
    return str(text.removeprefix(prompt))


def cases(template: Any, cut: Any) -> Iterator[Case]:
    """Yield the turns for one chat template. `cut(text)`: the text before the token that ends a turn."""
    call = cut(written(template, ("search", {"q": "Oslo", "year": "2024"})))
    unknown = cut(written(template, ("fly", {"to": "Oslo"})))
    yield Case("a text", "  It is 5.\n ")
    yield Case("code", CODE, tools=False)
    yield Case("a call", call)
    yield Case("a text and a call", f" I look.\n{call}")
    if template.form.name != "llama3":
        yield Case("two calls", cut(written(template, ("search", {"q": "a\n b"}), ("look", {"q": "true"}))))
        yield Case("a call and a text", f"{call}\nSo.")
    yield Case("a tool that nobody offered", unknown)
    yield Case("a call that is cut", call[: len(call) * 2 // 3])
    yield Case("a call without tools", f"I look.\n{call}", tools=False)
    yield Case("a call that is forbidden", f"I look.\n{call}", choice="none")
    yield Case("a JSON answer without tools", PERSON, tools=False)
    yield Case("a JSON answer", PERSON)
    yield Case("reasoning", f"{THOUGHT}  Five.\n", tools=False, apart=True)
    yield Case("reasoning and a call", f"{THOUGHT}{call}", apart=True)
    yield Case("reasoning without an end", "<think>\nI think and think", tools=False, apart=True)
    yield Case(
        "a stop text with a line break", "Thought: I act.\nObservation:\nmade up", False, stop=("Observation:\n",)
    )
    yield Case("a stop text at the begin", "\nUser: hm", tools=False, stop=("\nUser:",))
    yield Case("a stop text of line breaks", "One.\n\nTwo.", stop=("\n\n",))
    yield Case("two stop texts", "a b STOP c", tools=False, stop=("b STOP", "STOP", "b S"))
    yield Case("a stop text inside of a call", f"I look.\n{call}", stop=("Oslo",))
    yield Case("a stop text in reasoning", f"{THOUGHT}Five.", tools=False, stop=("think.",))
    yield Case("a limit", "One two three four five six seven.", most=4)
