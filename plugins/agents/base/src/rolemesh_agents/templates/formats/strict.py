"""Strict readers of values that a model wrote. All that they refuse is a `ValueError`."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["call_arguments", "json_value", "json_value_at", "python_calls"]

_DEEPEST = 64
_LONGEST = 1 << 20


def json_value(text: str) -> Any:
    """Return the JSON value that is all of `text`, but for spaces around it."""
    value, end = json_value_at(text, 0)
    if text[end:].strip():
        raise ValueError("there is more text after the value")
    return value


def json_value_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and the place of its end.

    It refuses NaN, infinite numbers, keys that occur twice, text that is not Unicode, values of more than 1 MiB and of
    more than 64 levels.
    """
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("the value is too deep") from None
    if end - start > _LONGEST:
        raise ValueError("the value is too long")
    _check(value, 0)
    return value, end


def call_arguments(value: Any) -> Mapping[str, Any]:
    """Return the arguments of a call: a mapping, or its JSON text. None and "" are no arguments."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = json_value(value)
    if not isinstance(value, dict):
        raise ValueError("the arguments are not an object")
    return value


def python_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of a Python list of calls, such as ``[add(a=1, b=2)]``, whose arguments are literals."""
    if len(text) > _LONGEST or sum(map(text.count, "([{")) > 10_000:
        raise ValueError("the calls are too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        found = [_python_call(node) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a list of calls: {error}") from None
    for _, arguments in found:
        _check(arguments, 0)
    return found


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("not a call with named arguments")
    return ast.unparse(node.func), {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}


def _check(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("the value is too deep")
    match value:
        case str():
            value.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        case bool() | None | int():
            pass
        case float():
            if not math.isfinite(value):
                raise ValueError("a number is not finite")
        case list():
            for each in value:
                _check(each, depth + 1)
        case dict():
            for key, each in value.items():
                _check(str(key), depth + 1)
                _check(each, depth + 1)
        case _:
            raise ValueError(f"{type(value).__name__} is not a JSON value")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)
