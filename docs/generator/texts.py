"""The possible texts of an expression of the source, with gaps for parts that only a running program knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

__all__ = ["GAP", "clean", "is_said", "templates"]

GAP = "…"
"""Stands for what is filled in."""


def templates(value: ast.expr | None, names: Mapping[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression can be, with gaps for what the source alone does not say."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            found = [""]
            for part in parts:
                texts = _filled(part, names) if isinstance(part, ast.FormattedValue) else templates(part, names)
                found = [head + text for head in found for text in texts]
            return found
        case ast.IfExp(body=one, orelse=other) | ast.BoolOp(op=ast.Or(), values=[one, other]):
            return [*templates(one, names), *templates(other, names)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [one + other for one in templates(left, names) for other in templates(right, names)]
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.List(elts=[first, *_])]):
            return templates(first, names)
        case ast.Call(func=ast.Name(id="nearest" | "did_you_mean")):
            return ["take the nearest name that there is; the message says which"]
        case ast.Name(id=name):
            inner = {key: values for key, values in names.items() if key != name}
            return [text for each in names.get(name, ()) for text in templates(each, inner)] or [GAP]
        case _:
            return [GAP]


def _filled(part: ast.FormattedValue, names: Mapping[str, list[ast.expr]]) -> list[str]:
    """A gap, or what a name stands for where that is a text of the source and not a word that happens to be one."""
    texts = templates(part.value, names) if part.conversion == -1 and not isinstance(part.value, ast.Call) else [GAP]
    return texts if all(is_said(text) and " " in text for text in texts) else [GAP]


def is_said(text: str) -> bool:
    """Whether the source says something itself, and does not only pass on what it was given."""
    return re.search(r"[a-z]{2}", re.sub(r"^the |…", "", text).replace("placement strategy", "")) is not None


def clean(text: str) -> str:
    return re.sub(r"(?:…\s?)+…", GAP, " ".join(text.split()))
