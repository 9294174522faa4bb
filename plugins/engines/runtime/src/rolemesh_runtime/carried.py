"""Options in the form in which they travel to other processes: plain values that msgpack can hold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel

__all__ = ["carried", "uncarried"]

Path: TypeAlias = tuple[str | int, ...]

PLAIN_KEYS = (int, float, bool, type(None))
INTEGERS = range(-(2**63), 2**64)
"""The integers that msgpack can hold."""


def carried(options: BaseModel) -> dict[str, Any]:
    """Return validated options as plain values from which the same options can be validated again.

    They are those of pydantic's JSON mode, but for what JSON has not: NaN, infinities, and keys that are no strings.
    """
    found: dict[str, Any] = _carried(options.model_dump(mode="json"), options.model_dump())
    return found


def _carried(plain: Any, exact: Any) -> Any:
    if plain is None and isinstance(exact, float) and not math.isfinite(exact):
        return exact
    if isinstance(plain, dict) and isinstance(exact, Mapping):
        if len(plain) < len(exact):  # JSON has taken 1 and "1" for one key
            return dict(exact)
        return {
            key if type(key) in PLAIN_KEYS else name: _carried(plain[name], exact[key])
            for name, key in zip(plain, exact, strict=True)
        }
    if isinstance(plain, list) and isinstance(exact, list | tuple) and len(plain) == len(exact):
        return [_carried(*each) for each in zip(plain, exact, strict=True)]
    return plain


def uncarried(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, str]]:
    """Yield place, reason and remedy of each value that cannot travel."""
    if isinstance(value, int) and value not in INTEGERS:
        yield path, f"{str(value)[:20]}… has more than 64 bits", "write a smaller number, or a text in quotes"
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        yield path, f"{value!r} is no text: it has bytes that are no UTF-8", "write it in UTF-8"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from uncarried(key, (*path, key))
            yield from uncarried(each, (*path, key))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from uncarried(each, (*path, number))
