"""The prompt of a row: a column, a template, or a chat of templates. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from rolemesh.errors import OptionsError, nearest

__all__ = ["COLUMNS", "Message", "PromptOption", "make_prompt", "question_of", "text_of"]

Message: TypeAlias = dict[str, Any]
PromptOption: TypeAlias = str | list[dict[str, str]] | None
COLUMNS = ("prompt", "messages", "question", "problem")
"""Names that the column with the prompt may have, if the job file names none."""
_PLACE = re.compile(r"(\{+)([^\W\d]\w*)(\}+)")
_LATEX = re.compile(r"\\[A-Za-z]+\*?(?:\{[^{}]*\})*$")
"""The end of what is before an argument of a LaTeX command: the command and its other arguments."""


def make_prompt(row: Mapping[str, Any], option: PromptOption, system: str | None) -> list[Message]:
    """Return the chat that a row asks with. Raises `OptionsError` if the row lacks a column.

    `option` is the name of a column, a text with {columns}, or messages with such texts. None: the first of `COLUMNS`
    that has no answer at its end; then what the chats `chosen` and `rejected` begin with; then the first one with an
    answer, which the model continues. As in `str.format`, {{text}} stands for {text}; other braces stay as they are. A
    column has a text, which becomes the message of a user, or the messages of a chat. `system` comes first, unless the
    chat begins with a system message itself.
    """
    asked = _asked(row, option)
    chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if system is not None and chat[0].get("role") != "system":
        return [{"role": "system", "content": system}, *chat]
    return chat


def question_of(chat: Sequence[Message]) -> str:
    """Return the text of the last message of a user; "" without one."""
    return next((text_of(each) for each in reversed(chat) if each["role"] == "user"), "")


def text_of(message: Message) -> str:
    """Return the content of a message as text: text parts line by line; "" for none."""
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(each.get("text", each) if isinstance(each, Mapping) else each) for each in parts)


def _asked(row: Mapping[str, Any], option: PromptOption) -> str | list[Message]:
    if isinstance(option, list):
        return [{**each, "content": _filled(each["content"], row)} for each in option]
    if option is not None and _PLACE.search(option):
        return _filled(option, row)
    name = option or _first(row)
    if name is None:
        if both := _both_begin_with(row):
            return both
        what = f"a row has none of the columns {', '.join(COLUMNS)}, but {', '.join(row)}"
        raise OptionsError(what, where="prompt", remedy="name its column, or a template such as `prompt: '{text}'`")
    value = _column(row, name)
    if isinstance(value, str) and value.strip():
        return value
    if _is_chat(value):
        if option is None and value[-1]["role"] == "assistant" and (both := _both_begin_with(row)):
            return both
        return _without_nulls(value)
    what = f"the column {name!r} has {value!r:.80}, which is neither a text nor the messages of a chat"
    raise OptionsError(what, where="prompt", remedy="name another column, or correct the row")


def _is_chat(value: object) -> TypeGuard[list[Message]]:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in value)
    )


def _first(row: Mapping[str, Any]) -> str | None:
    """Return the column to ask with, if the job file names none; None if there is none."""
    found = [name for name in COLUMNS if row.get(name) is not None]
    asks = [name for name in found if not (_is_chat(row[name]) and row[name][-1]["role"] == "assistant")]
    return next(iter(asks or found), next((name for name in COLUMNS if name in row), None))


def _both_begin_with(row: Mapping[str, Any]) -> list[Message]:
    """Return the messages with which the chats `chosen` and `rejected` begin, as TRL finds a prompt; [] for none."""
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if not (_is_chat(chosen) and _is_chat(rejected)):
        return []
    most = min(len(chosen), len(rejected)) - 1
    same = next((n for n in range(most) if chosen[n] != rejected[n]), most)
    return _without_nulls(chosen[:same])


def _without_nulls(chat: list[Message]) -> list[Message]:
    """Return the messages without keys that are null: a table gives each message the keys of all."""
    return [{key: each[key] for key in each if each[key] is not None} for each in chat]


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the values of its {columns}. Raises `OptionsError` for \\boxed{column}, which may mean
    both."""

    def fill(place: re.Match[str]) -> str:
        opened, name, closed = place.groups()
        depth = min(len(opened), len(closed))
        if depth == 1 and name in row and (command := _LATEX.search(template[: place.start()])):
            what = f"the template has {command[0]}{{{name}}}, and the rows have a column {name!r}"
            both = f"write {{{{{name}}}}} for the braces, or {{{{{{{name}}}}}}} for the column's value in braces"
            raise OptionsError(what, where="prompt", remedy=both)
        kept = depth // 2
        value = str(_column(row, name)) if depth % 2 else name
        return opened[depth:] + "{" * kept + value + "}" * kept + closed[depth:]

    return _PLACE.sub(fill, template)


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        remedy = f"{nearest(name, list(row))}; in a template, {{{{{name}}}}} stands for {{{name}}}"
        raise OptionsError(f"a row has no column {name!r}", where="prompt", remedy=remedy)
    return row[name]
