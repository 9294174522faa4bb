"""A chat as text or tokens, as a model's own chat template renders it. It imports neither torch nor transformers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rolemesh.errors import RolemeshError

__all__ = ["TEMPLATE_COLUMNS", "answer_of", "answered", "chat_text", "plain_text", "template_columns"]

TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
"""Columns, as TRL names them, that a chat template takes beside the messages: JSON schemas, and values by name."""
NO_TEMPLATE = (
    "take a model that was trained to chat, put a `chat_template` into the model's tokenizer_config.json, or use plain "
    "texts (the option `chat: false` of the role with the questions)"
)
_PROBE = "rolemesh probe"


def template_columns(batch: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the `TEMPLATE_COLUMNS` of a row: those of `batch`, or else those in its column `row`."""
    own = batch["row"][row] if "row" in batch else {}
    found = {name: batch[name][row] if name in batch else own.get(name) for name in TEMPLATE_COLUMNS}
    return {name: value for name, value in found.items() if value}


def answer_of(row: Mapping[str, Any], names: Sequence[str]) -> str | list[Any]:
    """Return the answer of a row: the first of its columns `names` that is not null, a text or the messages of a chat.

    Raises `RolemeshError` if there is none, or it has another type.
    """
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        what = f"a row has no answer in the columns {', '.join(names)}, but {', '.join(row)}"
        raise RolemeshError(what, remedy="name its column, or leave the row out")
    answer = row[name]
    if isinstance(answer, (bool, int, float)):
        return str(answer)
    if isinstance(answer, str) or (isinstance(answer, list) and answer and all(_is_message(each) for each in answer)):
        return answer
    what = f"the answer in the column {name} is {answer!r:.80}, neither a text nor the messages of a chat"
    raise RolemeshError(what, remedy="choose one text of it in the data, or leave the row out")


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and "role" in value


def answered(
    tokenizer: Any,
    asked: str | Sequence[Mapping[str, Any]],
    answers: Sequence[str | Sequence[Mapping[str, Any]]],
    columns: Mapping[str, Any],
) -> tuple[list[int], list[list[int]]]:
    """Return the tokens of a prompt, and those of each answer to it, as TRL's trainers cut them.

    - `asked`: the messages of a chat, or a plain text.
    - `answers`: texts, or the messages that follow `asked`, which they may repeat. After a chat an answer ends as the
      chat template ends a turn; after a plain text it ends with the tokenizer's ``eos_token``. A plain text begins with
      the tokens that the tokenizer writes before each text, as a rollout's prompt does.
    - `columns`: see `chat_text`, which also says what is raised.

    Tokens of the prompt that the template renders otherwise before an answer belong to the answers. Raises
    `RolemeshError`, too, for answers with calls of tools that the template does not read.
    """

    def tokens(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    if isinstance(asked, str):
        first, end = _around(tokenizer)
        prompt = _begun(first, tokens(asked))
        wholes = [[*_begun(first, tokens(f"{asked}{each}")), end] for each in answers]
    else:
        follow = [_following(asked, each) for each in answers]
        _check_calls(tokenizer, follow, columns)
        chats = [[*asked, *each] for each in follow]
        prompt = tokens(chat_text(tokenizer, asked, columns, prompt=True)) if asked else []
        wholes = [tokens(chat_text(tokenizer, each, columns, prompt=False)) for each in chats]
    same = min((_common(prompt, whole) for whole in wholes), default=len(prompt))
    return prompt[:same], [whole[same:] for whole in wholes]


def _around(tokenizer: Any) -> tuple[list[int], int]:
    """Return the tokens that the tokenizer writes before each text, and its end of a text."""
    first, end = [*tokenizer("")["input_ids"]], tokenizer.eos_token_id
    return first[:-1] if first[-1:] == [end] else first, end


def _begun(first: list[int], text: list[int]) -> list[int]:
    return text if text[: len(first)] == first else [*first, *text]


def _check_calls(tokenizer: Any, answers: Sequence[Sequence[Mapping[str, Any]]], columns: Mapping[str, Any]) -> None:
    source = _template(tokenizer, columns.get("tools"))
    if source and "tool_calls" not in source and any(each.get("tool_calls") for chat in answers for each in chat):
        what = "an answer calls a tool, and the model's chat template does not read 'tool_calls'"
        raise RolemeshError(what, remedy="leave the row out, or take a model whose template reads it")


def _following(
    asked: Sequence[Mapping[str, Any]], answer: str | Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return the messages of an answer, without those of the prompt, to which the job may have added a first one."""
    if isinstance(answer, str):
        return [{"role": "assistant", "content": answer}]

    def said(chat: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
        return [(each.get("role"), each.get("content")) for each in chat]

    for asks in (asked, asked[1:]):
        if asks and len(answer) > len(asks) and said(answer[: len(asks)]) == said(asks):
            return answer[len(asks) :]
    return answer


def _common(some: Sequence[Any], others: Sequence[Any]) -> int:
    """Return the number of equal items at the beginning."""
    return [*(one == other for one, other in zip(some, others, strict=False)), False].index(False)


def chat_text(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], *, prompt: bool, name: str = ""
) -> str:
    """Return the text of a chat, as TRL's ``apply_chat_template`` does.

    - `tokenizer`: a tokenizer of transformers.
    - `columns`: those of the row. The template gets its `tools` (a list, or its JSON) and `chat_template_kwargs`.
    - `prompt`: whether the model's next turn follows. If the last message is the assistant's, the turn continues it.
    - `name`: the row's name in errors; by default the begin of its last text.

    A message without content has an empty one. Text parts are joined line by line, unless the template takes parts.
    Raises `RolemeshError` for parts that are no text, for messages, tools or variables that the template refuses, and
    for variables that it does not read.
    """
    said = next((each["content"] for each in reversed(messages) if each.get("content")), "")
    name = name or f"the question {said!r:.60}"
    if not messages:
        raise RolemeshError(f"{name} has no messages", remedy="leave the row out, or give it a message")
    last, given = messages[-1], [_set(each) | {"content": _parts(each, name)} for each in messages]
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
        if _template(tokenizer, variables.get("tools")) is None:
            raise RolemeshError(f"the model has no chat template, so {name} is no chat", remedy=NO_TEMPLATE) from error
        roles = ", ".join(str(each.get("role")) for each in messages)
        raise RolemeshError(
            f"the model's chat template refuses {name}, a chat of the roles {roles}: {error}",
            remedy="change the messages or leave the row out, or take a model whose template knows them",
        ) from error


def _set(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message has: a table gives each message the keys of all, and null to those that it lacks."""
    return {name: value for name, value in message.items() if value is not None}


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


def _template(tokenizer: Any, tools: Any) -> str | None:
    """Return the source of the chat template; "" if the tokenizer does not tell, None if it has no template."""
    if not hasattr(tokenizer, "get_chat_template"):
        return ""
    try:
        found: str = tokenizer.get_chat_template(tools=tools)
    except Exception:  # transformers raises ValueError, a tokenizer of others anything
        return None
    return found


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
    source = _template(tokenizer, found.get("tools"))
    for each in found:
        if source and not re.search(rf"\b{re.escape(each)}\b", source):
            what = f"the model's chat template does not read {each!r}, which {name} gives it in a column"
            raise RolemeshError(what, remedy="leave it out, or take a model whose template reads it")
    return found
