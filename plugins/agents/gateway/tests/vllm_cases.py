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
    "gptoss": "openai",
}  # fmt: skip
"""vLLM's parser of calls for each chat template."""
REASONING = {
    "gemma4": "gemma4", "glm4moe": "glm45", "gptoss": "openai_gptoss", "qwen2_5": "deepseek_r1", "qwen3": "qwen3",
}  # fmt: skip
"""vLLM's parser of reasoning, for the agent's option ``reasoning: apart``."""
ALWAYS = ("gemma4", "gptoss")
"""Templates whose reasoning is always apart."""
APIS = ("chat", "chat stream", "messages", "messages stream", "responses", "responses stream")


class Case(msgspec.Struct, frozen=True):
    """One turn. `said`: the text of its tokens. `tools`: whether the request offers any. `most`: the limit of tokens;
    None: no limit that matters. `end`: the token that ends the turn; "": the tokenizer's."""

    name: str
    said: str
    tools: bool = True
    choice: str = ""
    stop: tuple[str, ...] = ()
    most: int | None = None
    apart: bool = False
    end: str = ""


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
    if template.form.name == "harmony":
        yield from harmony_cases()
        return
    call = cut(written(template, ("search", {"q": "Oslo", "year": "2024"})))
    unknown = cut(written(template, ("fly", {"to": "Oslo"})))
    yield Case("a text", "  It is 5.\n ")
    yield Case("code", CODE, tools=False)
    yield Case("a call", call)
    yield Case("a text and a call", f" I look.\n{call}")
    if template.form.name != "llama3":
        yield Case("two calls", cut(written(template, ("search", {"q": "a\n b"}), ("look", {"q": "true"}))))
        yield Case("a call and a text", f"{call}\nSo.")
    if template.form.name == "hermes":
        yield Case("a call with args for arguments", call.replace("arguments", "args"))
    if template.form.name == "qwen-coder":
        yield Case("a parameter without its =", call.replace("<parameter=year>", "<parameteryear>"))
        yield Case("a parameter without its end", call.replace("Oslo\n</parameter>", "Oslo"))
        yield Case("a function in a value", call.replace("Oslo", "a <function=b> c"))
        yield Case("two functions in a call", call.replace("</tool_call>", call.removeprefix("<tool_call>\n")))
        yield Case("a call without its mark", call.replace("<tool_call>\n", ""))
    yield Case("a tool that nobody offered", unknown)
    yield Case("a call that is cut", call[: len(call) * 2 // 3])
    yield Case("a call without tools", f"I look.\n{call}", tools=False)
    yield Case("a call that is forbidden", f"I look.\n{call}", choice="none")
    yield Case("a JSON answer without tools", PERSON, tools=False)
    yield Case("a JSON answer", PERSON)
    yield Case("reasoning", f"{THOUGHT}  Five.\n", tools=False, apart=True)
    yield Case("reasoning and a call", f"{THOUGHT}{call}", apart=True)
    if template.form.name in ("gemma", "glm", "hermes", "qwen-coder"):
        only = call.removeprefix("<think>\n\n</think>\n\n")
        yield Case("a call in reasoning", f"<think>\nI could {only}\n</think>\n\n{only}", apart=True)
        yield Case("a call in reasoning without an end", f"<think>\nI think.\n{only}", apart=True)
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


def harmony_cases() -> Iterator[Case]:
    """Yield the turns of GPT-OSS, which writes messages in channels. A call ends with a token of its own."""
    final, analysis, comment = (f"<|channel|>{name}<|message|>" for name in ("final", "analysis", "commentary"))
    after, thought = "<|end|><|start|>assistant", f"{analysis}I think.<|end|><|start|>assistant"
    body = '{"q": "Oslo", "year": "2024"}'
    to = " to=functions.search"
    call = f"{to}<|channel|>commentary json<|message|>{body}"
    yield Case("a text", f"{final}  It is 5.\n ")
    yield Case("code", f"{final}{CODE}", tools=False)
    yield Case("two final texts", f"{final}One.{after}{final}Two.", tools=False)
    yield Case("a text without a channel", "  It is 5.\n ")
    yield Case("an unknown channel", "<|channel|>other<|message|>hm", tools=False)
    yield Case("a channel that is cut", "<|channel|>fin", tools=False)
    yield Case("nothing", "", tools=False)
    called = {
        "a call": call,
        "a call with its tool in the channel": call.replace(to, "").replace("json", f"{to[1:]} <|constrain|>json"),
        "a call in the channel of reasoning": f"{thought}<|channel|>analysis{to} code<|message|>{body}",
        "a text and a call": f"{comment} I look.\n{after}{call}",
        "a final text and a call": f"{final} I look.\n{after}{call}",
        "reasoning and a call": f"{thought}{call}",
        "two calls": f"{call}{after} to=functions.look<|channel|>commentary json<|message|>{{}}",
        "a tool that nobody offered": call.replace("search", "fly"),
        "a tool without its namespace": call.replace("functions.", ""),
        "a tool of OpenAI": " to=python<|channel|>commentary code<|message|>print(1)",
        "a message to the assistant": f" to=assistant{comment}hm",
        "arguments that are no JSON": call[:-1],
        "arguments that are no object": call.replace(body, "[1]"),
        "arguments with spaces": call.replace(body, f" {body}\n"),
        "no arguments": call.replace(body, ""),
    }
    for name, said in called.items():
        yield Case(name, said, end="<|call|>")
    yield Case("a call and a text", f"{call}{after}{final}So.")
    yield Case("a call that is cut", call[:-9])
    yield Case("a call that is cut in its head", " to=functions.search<|channel|>comm")
    yield Case("a call without tools", f"{comment}I look.{after}{call}", tools=False, end="<|call|>")
    yield Case("a call that is forbidden", f"{comment}I look.{after}{call}", choice="none", end="<|call|>")
    yield Case("a JSON answer", f"{final}{PERSON}")
    yield Case("reasoning", f"{thought}{final}  Five.\n", tools=False)
    yield Case("reasoning twice", f"{thought}{analysis}And think.{after}{final}Five.", tools=False)
    yield Case("empty reasoning", f"{analysis}{after}{final}Five.", tools=False)
    yield Case("reasoning alone", f"{analysis}I think.<|end|>", tools=False)
    yield Case("reasoning without an end", f"{analysis}I think and think", tools=False)
    said = f"{final}I act.\nObservation:\nmade up"
    yield Case("a stop text with a line break", said, tools=False, stop=("Observation:\n",))
    yield Case("a stop text at the begin", f"{final}\nUser: hm", tools=False, stop=("\nUser:",))
    yield Case("a stop text inside of a call", f"{comment}I look.{after}{call}", stop=("Oslo",), end="<|call|>")
    yield Case("a stop text in reasoning", f"{thought}{final}Five.", tools=False, stop=("think.",))
    yield Case("a stop text in a head", f"{thought}{final}Five.", tools=False, stop=("assistantfinal",))
    yield Case("a limit", f"{final}a b c d e", most=6)
    yield Case("a limit in reasoning", f"{analysis}a b c d e", most=6)
    yield Case("a limit in a head", f"{analysis}a b c d e", most=2)
