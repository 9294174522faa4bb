"""A guard: it keeps the text of tools and users from becoming control tokens of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from rolemesh_agents.templates.vocabulary import Vocabulary

__all__ = ["HERE", "Guard"]

_OWN = "rolemesh0"
HERE = f"{_OWN}here"
"""A text that no hidden value contains. It marks a place in a rendered conversation."""
_HIDDEN = re.compile(rf"{_OWN}hidden(\d+)x")

T = TypeVar("T")


class Guard:
    """Replaces texts that imitate control tokens by names, before a template renders them.

    Texts without such imitations stay as they are, and so do their tokens. One object is for one rendering.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._texts: list[str] = []
        self._risky = re.compile(f"{vocabulary.marks.pattern}|{_OWN}")

    def hide(self, value: T) -> T:
        """Return `value`, a JSON value, with names instead of imitations in all its texts and keys."""
        return cast("T", _mapped(value, self._hidden))

    def show(self, value: T) -> T:
        """Return `value` with the texts instead of their names."""
        return cast("T", _mapped(value, lambda text: _HIDDEN.sub(lambda found: self._texts[int(found[1])], text)))

    def encode(self, rendered: str, continued: bool = False) -> list[int]:
        """Return the tokens of a rendered conversation: the names become plain text.

        `continued`: other tokens stand before these.
        """
        parts = _HIDDEN.split(rendered)
        numbers = (self._vocabulary.continued if continued else self._vocabulary.encode)(parts[0]) if parts[0] else []
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            numbers += self._vocabulary.plain(self._texts[int(name)])
            numbers += self._vocabulary.continued(text) if text else []
        return numbers

    def _hidden(self, text: str) -> str:
        safe = self._risky.sub(lambda found: self._name(found[0]), text)
        if safe == text and self._vocabulary.imitates(text):
            return self._name(text)
        return safe

    def _name(self, text: str) -> str:
        self._texts.append(text)
        return f"{_OWN}hidden{len(self._texts) - 1}x"


def _mapped(value: Any, change: Any) -> Any:
    """Return a JSON value, or a struct, with `change` applied to all its texts."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(key) if isinstance(key, str) else key: _mapped(v, change) for key, v in value.items()}
        case list() | tuple():
            return type(value)(_mapped(v, change) for v in value)
        case msgspec.Struct():
            fields = {name: _mapped(getattr(value, name), change) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        case _:
            return value
