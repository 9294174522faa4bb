"""pydantic's errors as ours: file, line and path, what was expected and what was found, and the nearest known key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolemesh.errors import RolemeshError, nearest
from rolemesh.spec.keys import known_keys
from rolemesh.spec.places import Path, Places

__all__ = ["problems"]

_EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a number",
    "string": "a string",
    "bool": "true or false",
    "dict": "a mapping",
    "model": "a mapping",
    "mapping": "a mapping",
    "dataclass": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "none": "null",
    "path": "a path",
}


def problems(
    error: ValidationError,
    model: type[BaseModel],
    places: Places,
    *,
    base: Path = (),
    secret: Callable[[Path], bool] = lambda path: False,
    kind: type[RolemeshError],
) -> list[RolemeshError]:
    """One error of `kind` per place, in the document's order.

    `base` is the path of the validated value in the document; `secret(path)` says whether a value came from the
    environment and must not be shown.
    """
    grouped: dict[tuple[Path, bool], list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        path = _path(details, places, base)
        expected = _expected(details)
        grouped.setdefault((path, expected is not None), []).append(details)
    order = {path: position for position, path in enumerate(places.lines)}
    result: list[RolemeshError] = []
    for (path, _), group in sorted(grouped.items(), key=lambda item: order[places.resolve(item[0][0])[0]]):
        if (wanted := list(dict.fromkeys(filter(None, map(_expected, group))))) and len(wanted) == len(group):
            result.append(_wrong_type(" or ".join(wanted), group[0], path, places, secret, kind))
        else:
            result += [_other(details, path, model, places, base, kind) for details in group]
    return result


def _path(details: ErrorDetails, places: Places, base: Path) -> Path:
    """The error's location without the parts that pydantic adds for the branches of a union."""
    path = base
    last = len(details["loc"]) - 1
    for position, part in enumerate(details["loc"]):
        known, rest = places.resolve((*path, part))
        if not rest:
            path = known
        elif position == last and details["type"] == "missing":
            path = (*path, part)
    return path


def _expected(details: ErrorDetails) -> str | None:
    if details["type"] == "literal_error":
        return str(details["ctx"]["expected"])
    if details["type"] == "none_required":
        return "null"
    if details["type"] == "bool_parsing":
        return "true or false"
    head, _, tail = details["type"].partition("_")
    return _EXPECTED.get(head) if tail in ("type", "parsing", "from_float", "attributes_type") else None


def _wrong_type(
    expected: str,
    details: ErrorDetails,
    path: Path,
    places: Places,
    secret: Callable[[Path], bool],
    kind: type[RolemeshError],
) -> RolemeshError:
    found = details["input"]
    got = f"the variable's value ({_name(found)})" if secret(path) else _describe(found)
    remedy = None
    if expected == "a string" and isinstance(found, int | float):
        remedy = "put it in quotes"
    elif expected == "a list" and isinstance(found, dict):
        remedy = "begin each entry with '- ', or write [ … ]"
    elif found is None:
        remedy = "give it a value, or leave the key out"
    return kind(f"expected {expected}, got {got}", where=places.where(path), remedy=remedy)


def _name(value: Any) -> str:
    for types, name in (
        (bool, "a boolean"),
        (str, "a string"),
        (int, "an integer"),
        (float, "a number"),
        (dict, "a mapping"),
    ):
        if isinstance(value, types):
            return name
    return "a list" if isinstance(value, Sequence) else "nothing" if value is None else type(value).__name__


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return _name(value)
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '…'} ({_name(value)})"


def _other(
    details: ErrorDetails, path: Path, model: type[BaseModel], places: Places, base: Path, kind: type[RolemeshError]
) -> RolemeshError:
    where = places.where(path)
    if details["type"] == "extra_forbidden":
        key = str(details["loc"][-1])
        return kind(f"unknown key {key!r}", where=where, remedy=nearest(key, known_keys(model, details["loc"][:-1])))
    if details["type"] == "missing":
        fields = known_keys(model, details["loc"][:-1])
        return kind(f"{details['loc'][-1]!r} is missing", where=where, remedy=_add(str(details["loc"][-1]), fields))
    cause = (details.get("ctx") or {}).get("error")
    if isinstance(cause, RolemeshError):
        return kind(cause.what, where=where, remedy=cause.remedy)
    text = str(cause) if cause is not None else details["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return kind(text, where=where)


def _add(key: str, fields: list[str]) -> str:
    return f"add it: {key}: …" if key in fields else "add it"
