"""The prompt of a row: a column, a template, or a chat of templates. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rolemesh.errors import OptionsError, nearest

__all__ = ["COLUMNS", "Message", "PromptOption", "make_prompt", "question_of"]

Message: TypeAlias = dict[str, Any]
PromptOption: TypeAlias = str | list[dict[str, str]] | None
COLUMNS = ("prompt", "messages", "question", "problem")
"""Names that the column with the prompt may have, if the job file names none."""
_PLACE = re.compile(r"\{(\w+)\}")


def make_prompt(row: Mapping[str, Any], option: PromptOption, system: str | None) -> list[Message]:
    """Return the chat that a row asks with. Raises `OptionsError` if the row lacks a column.

    `option` is the name of a column, a text with {columns}, or messages with such texts; None: the first of `COLUMNS`
    that the row has. A column has a text, which becomes the message of a user, or the messages of a chat.
    `system` comes first, unless the chat begins with a system message itself.
    """
    asked = _asked(row, option)
    chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if system is not None and chat[0].get("role") != "system":
        return [{"role": "system", "content": system}, *chat]
    return chat


def question_of(chat: Sequence[Message]) -> str:
    """Return the text of the last message of a user; "" without one."""
    return next((str(each["content"]) for each in reversed(chat) if each["role"] == "user"), "")


def _asked(row: Mapping[str, Any], option: PromptOption) -> str | list[Message]:
    if isinstance(option, list):
        return [{**each, "content": _filled(each["content"], row)} for each in option]
    if option is not None and _PLACE.search(option):
        return _filled(option, row)
    name = option or next((name for name in COLUMNS if name in row), None)
    if name is None:
        what = f"a row has none of the columns {', '.join(COLUMNS)}, but {', '.join(row)}"
        raise OptionsError(what, where="prompt", remedy="name its column, or a template such as `prompt: '{text}'`")
    value = _column(row, name)
    if isinstance(value, str) and value.strip():
        return value
    if (
        isinstance(value, list)
        and value
        and all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in value)
    ):
        return [{key: each[key] for key in each if each[key] is not None} for each in value]
    what = f"the column {name!r} has {value!r:.80}, which is neither a text nor the messages of a chat"
    raise OptionsError(what, where="prompt", remedy="name another column, or correct the row")


def _filled(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the values of its {columns}. Other braces stay as they are."""
    return _PLACE.sub(lambda place: str(_column(row, place[1])), template)


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise OptionsError(f"a row has no column {name!r}", where="prompt", remedy=nearest(name, list(row)))
    return row[name]
