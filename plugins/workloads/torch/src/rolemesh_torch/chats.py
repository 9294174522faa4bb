"""A chat as text, as a model's own chat template renders it. It imports neither torch nor transformers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rolemesh.errors import RolemeshError

__all__ = ["TEMPLATE_COLUMNS", "chat_text", "plain_text", "template_columns"]

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
"""Columns, as TRL names them, that a chat template takes beside the messages: JSON schemas, and values by name."""
_PROBE = "rolemesh probe"


def template_columns(batch: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the `TEMPLATE_COLUMNS` of a row: those of `batch`, or else those in its column `row`."""
    own = batch["row"][row] if "row" in batch else {}
    found = {name: batch[name][row] if name in batch else own.get(name) for name in TEMPLATE_COLUMNS}
    return {name: value for name, value in found.items() if value}


def chat_text(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], *, prompt: bool, name: str = ""
) -> str:
    """Return the text of a chat, as TRL's ``apply_chat_template`` does.

    - `tokenizer`: a tokenizer of transformers.
    - `columns`: those of the row. The template gets its `tools` (a list, or its JSON) and `chat_template_kwargs`.
    - `prompt`: whether the model's next turn follows. If the last message is the assistant's, the turn continues it.
    - `name`: the row's name in errors; by default the begin of its last message.

    A message without content has an empty one. Text parts are joined line by line, unless the template takes parts.
    Raises `RolemeshError` for parts that are no text, and for messages, tools or variables that the template refuses.
    """
    name = name or f"the question {messages[-1].get('content') if messages else ''!r:.60}"
    if not messages:
        raise RolemeshError(f"{name} has no messages", remedy="leave the row out, or give it a message")
    last, given = messages[-1], [{**each, "content": _parts(each, name)} for each in messages]
    continued = prompt and last.get("role") == "assistant"
    if continued and last.get("tool_calls"):
        what = f"{name} ends with a call of a tool by the role assistant, which no turn can continue"
        raise RolemeshError(what, remedy="add the tool's answer, a message of the role tool")
    if any(isinstance(each["content"], list) for each in given) and not _takes_parts(tokenizer):
        given = [{**each, "content": _joined(each["content"])} for each in given]
    variables = _variables(tokenizer, columns, name)
    how = {"add_generation_prompt": prompt and not continued, "continue_final_message": continued}
    try:
        return str(tokenizer.apply_chat_template(given, tokenize=False, **how, **variables))
    except Exception as error:  # a template is a program: it may fail in all ways
        roles = ", ".join(str(each.get("role")) for each in messages)
        raise RolemeshError(
            f"the model's chat template refuses {name}, a chat of the roles {roles}: {error}",
            remedy="change the messages or leave the row out, or take a model whose template knows them",
        ) from error


def plain_text(message: Mapping[str, Any], name: str = "a question") -> str:
    """Return a message's content as text: text parts line by line; "" for none. Raises `RolemeshError` for others."""
    return _joined(_parts(message, name))


def _parts(message: Mapping[str, Any], name: str) -> str | list[dict[str, str]]:
    content, role = message.get("content"), message.get("role")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, (list, tuple)):
        what = f"{name} has a message of the role {role} whose content is {type(content).__name__}, not text"
        raise RolemeshError(what, remedy="give a text, or a list of text parts")
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    for each in parts:
        if not isinstance(each, Mapping) or not isinstance(each.get("text"), str):
            kind = each.get("type") if isinstance(each, Mapping) else type(each).__name__
            what = f"{name} has a message of the role {role} with a part {kind}, and chats have text only"
            raise RolemeshError(what, remedy="give text parts only, or leave the row out")
    return [{"type": "text", "text": each["text"]} for each in parts]


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(each["text"] for each in content)


def _takes_parts(tokenizer: Any) -> bool:
    """Whether the template writes the text of a list of parts, and not the list."""
    probe = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
    try:
        found = str(tokenizer.apply_chat_template(probe, tokenize=False))
    except Exception:  # most templates cannot add a list to a text
        return False
    return _PROBE in found and not re.search(rf"""["']{_PROBE}""", found)


def _variables(tokenizer: Any, columns: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arguments for the template from a row's columns. Raises `RolemeshError` for any without effect."""
    tools, more = (columns.get(each) or None for each in TEMPLATE_COLUMNS)
    if isinstance(tools, str):
        with suppress(ValueError, RecursionError):  # the text is refused below
            tools = json.loads(tools)
    if tools and not (isinstance(tools, (list, tuple)) and all(isinstance(each, Mapping) for each in tools)):
        what = f"the column tools of {name} is {tools!r:.80}, not a list of JSON schemas"
        raise RolemeshError(what, remedy="give a list of functions as the OpenAI API takes them, or rename the column")
    if more and not isinstance(more, Mapping):
        what = f"the column chat_template_kwargs of {name} is {more!r:.80}, not a mapping"
        raise RolemeshError(what, remedy="give values by name, such as {enable_thinking: false}, or rename the column")
    arguments = set(inspect.signature(tokenizer.apply_chat_template).parameters) - {"documents"}
    for each in sorted(arguments & set(more or ())):
        what = f"the column chat_template_kwargs of {name} has {each!r}, an argument of apply_chat_template itself"
        raise RolemeshError(what, remedy="leave it out of the column; tools have a column of their own")
    found = ({"tools": list(tools)} if tools else {}) | dict(more or {})
    source = tokenizer.get_chat_template(tools=tools) if found and hasattr(tokenizer, "get_chat_template") else None
    for each in found:
        if isinstance(source, str) and not re.search(rf"\b{re.escape(each)}\b", source):
            what = f"the model's chat template does not read {each!r}, which {name} gives it in a column"
            raise RolemeshError(what, remedy="leave it out, or take a model whose template reads it")
    return found
