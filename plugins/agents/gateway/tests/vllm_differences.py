"""The differences between the gateway's answers and those of vLLM's server 0.32, each with its reason.

A row of the table says for which templates and cases it is, and how the two answers must be related.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Answer = dict[str, Any]


def fails(mine: Answer, other: Answer) -> bool:
    return "error" in other and "error" not in mine


def but_for_spaces(mine: Answer, other: Answer) -> bool:
    """Equal, except for white space at both ends of the content, beside calls."""
    same = {**mine, "content": mine["content"].strip()} == {**other, "content": other["content"].strip()}
    return same and bool(mine["calls"])


def but_for_thoughts(mine: Answer, other: Answer) -> bool:
    """Equal, except for white space at the end of the reasoning."""
    return {**mine, "reasoning": mine["reasoning"].rstrip()} == other


def same_calls(mine: Answer, other: Answer) -> bool:
    return bool(mine["calls"]) and mine["calls"] == other["calls"]


def last_calls(mine: Answer, other: Answer) -> bool:
    """The gateway has the last of vLLM's calls."""
    return bool(mine["calls"]) and mine["calls"] == other["calls"][-len(mine["calls"]) :]


def text(mine: Answer, other: Answer) -> bool:
    """The gateway has a text that begins as vLLM's, and no calls."""
    return not mine["calls"] and (fails(mine, other) or mine["content"].strip().startswith(other["content"].strip()))


def called(mine: Answer, other: Answer) -> bool:
    """The gateway has calls, and vLLM has none."""
    return bool(mine["calls"]) and not other["calls"]


def both(*relations: Callable[[Answer, Answer], bool]) -> Callable[[Answer, Answer], bool]:
    """One of the relations."""
    return lambda mine, other: any(each(mine, other) for each in relations)


def no_calls(mine: Answer, other: Answer) -> bool:
    """The gateway has a text only."""
    return not mine["calls"] and bool(mine["content"])


def bare(mine: Answer, other: Answer) -> bool:
    """Equal, except for special tokens in vLLM's text."""
    return mine == {**other, "content": re.sub(r"<\|\w+\|>", "", other["content"])}


def stopped(mine: Answer, other: Answer) -> bool:
    """Equal, except that vLLM's text or its reasoning goes on."""
    told = {name: other[name][: len(mine[name])] for name in ("content", "reasoning")}
    return mine == {**other, **told}


def but_for_breaks(mine: Answer, other: Answer) -> bool:
    """Equal, except for line breaks between parts."""
    return {k: str(v).replace("\n", "") for k, v in mine.items()} == {
        k: str(v).replace("\n", "") for k, v in other.items()
    }


NO_TOOLS = ("a call without tools", "a call that is forbidden", "a JSON answer without tools")
CUT = ("a call that is cut", "a stop text inside of a call", "a call with args for arguments")
UNFRAMED = (
    "a text without a channel", "a channel that is cut", "a call that is cut in its head", "a limit in a head",
    "nothing",
)  # fmt: skip
STOPPED = (
    "a stop text with a line break", "a stop text at the begin", "a stop text in reasoning", "a stop text in a head",
)  # fmt: skip
TABLE: Sequence[tuple[str, Sequence[str], Sequence[str], Callable[[Answer, Answer], bool]]] = (
    (
        "vLLM shows Hermes 3's template no tools as null, which it cannot take; the gateway shows an empty list",
        ("hermes3",), (), fails,
    ),
    (
        "vLLM's newer parsers strip the text beside calls, but not in a stream; white space was sampled, too",
        ("gemma4", "glm4moe", "granite3_3", "lfm2", "qwen3_coder", "qwen2_5"), (), but_for_spaces,
    ),
    (
        "vLLM's newer parsers strip the end of the reasoning",
        ("gemma4", "glm4moe"), (), both(but_for_thoughts, same_calls),
    ),
    (
        "vLLM drops the text after a call, or white space at its begin; a text that was sampled is not lost here",
        (), ("a call and a text",), same_calls,
    ),
    (
        "A call that nobody can read is a text in an answer, as with vLLM's older parsers. Its newer ones and its "
        "streams report calls whose arguments are no JSON, or without those that are missing",
        (), CUT, text,
    ),
    (
        "vLLM shows special tokens, or a part of their text, in a text with a call of LFM2 or Mistral that is cut",
        ("lfm2", "mistral_nemo"), CUT, no_calls,
    ),
    (
        "Without tools, and with tool_choice none, a call is text in Chat Completions and Responses, as with vLLM's "
        "older parsers. Its newer ones, its Messages API and some streams lose this text, or report a call that nobody "
        "offered",
        (), NO_TOOLS, text,
    ),
    (
        "The marks of DeepSeek's calls are special tokens in the tests' tokenizer, so vLLM's parser does not see them",
        ("deepseek_v3_1",), (), both(called, same_calls, text),
    ),
    (
        "vLLM's parser for GLM drops a call of a tool that nobody offered; all others report it, as the gateway does",
        ("glm4moe",), ("a tool that nobody offered",), called,
    ),
    (
        "vLLM finds a call of Llama 3 anywhere in a text, and drops the text; its stream finds only one at the begin",
        ("llama3_1",), ("a text and a call",), text,
    ),
    (
        "vLLM's parser for Llama 3 knows no reasoning, so reasoning before a call is a text, or lost",
        ("llama3_1",), ("reasoning and a call",), both(same_calls, called),
    ),
    (
        "vLLM's stream for Llama 3 takes any JSON object with a name for a call; without a stream it is a text",
        ("llama3_1",), ("a JSON answer",), text,
    ),
    (
        "A call in reasoning is none, but for one at the end of the turn; vLLM without a parser of reasoning, and its "
        "newer parsers, take each",
        (), ("a call in reasoning",), last_calls,
    ),
    (
        "A call at the end of the turn ends reasoning, as with most parsers of vLLM; DeepSeek R1's waits for a mark",
        ("qwen2_5",), ("a call in reasoning without an end",), both(called, same_calls),
    ),
    (
        "vLLM drops a parameter of Qwen3-Coder whose mark lacks its =; a call that nobody can read is a text here",
        ("qwen3_coder",), ("a parameter without its =",), text,
    ),
    (
        "A call of Qwen3-Coder without <tool_call> is a text: its other marks are no tokens, so a quoted page has them",
        ("qwen3_coder",), ("a call without its mark",), text,
    ),
    (
        "vLLM joins messages of GPT-OSS in one channel with a line break, but not in streams and Responses",
        ("gptoss",), ("two final texts", "reasoning twice"), but_for_breaks,
    ),
    (
        "vLLM shows the marks of a turn of GPT-OSS that is no message, and its last token; special tokens are no text",
        ("gptoss",), UNFRAMED, bare,
    ),
    (
        "vLLM drops a message of GPT-OSS to another receiver or in another channel, or fails; a text is not lost here",
        ("gptoss",), ("an unknown channel", "a tool of OpenAI", "a message to the assistant"), text,
    ),
    (
        "A call of GPT-OSS whose arguments are no object is a text; vLLM reports it, or fails. One without arguments "
        "looks like one that is cut before them",
        ("gptoss",), ("arguments that are no JSON", "arguments that are no object", "no arguments"), text,
    ),
    (
        "vLLM takes turns of GPT-OSS apart by their tokens, with those of the stop text; no answer contains it here",
        ("gptoss",), STOPPED, stopped,
    ),
    (
        "vLLM's parser for Qwen 3 drops a second </think>; this one is a part of the text",
        ("qwen3",), ("reasoning and a call",), same_calls,
    ),
)  # fmt: skip


def reason_of(template: str, place: str, case: str, api: str, mine: Answer, other: Answer) -> str:
    """Return the reason why two answers may differ, or ""."""
    for reason, templates, cases, related in TABLE:
        known = (not templates or template in templates) and (not cases or case in cases)
        if known and ("error" in other) <= (related in (fails, text)) and related(mine, other):
            return reason
    return ""
