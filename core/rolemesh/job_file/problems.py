"""Convert pydantic's errors: add file, line and path, the expected and the found value, and the
nearest known key."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolemesh.errors import RolemeshError, nearest
from rolemesh.job_file.places import Path, Places

if TYPE_CHECKING:
    from rolemesh.job_file.loading import JobFile


Elsewhere: TypeAlias = Callable[[Path, str], RolemeshError | None]
"""Function that takes the path and the place of an unknown key, and returns the error to raise, or
None."""
_EXPECTED = (
    {"int": "an integer", "string": "a string", "bool": "true or false", "none": "null"}
    | {"path": "a path"}
    | dict.fromkeys(("float", "decimal"), "a number")
    | dict.fromkeys(("dict", "model", "mapping", "dataclass"), "a mapping")
    | dict.fromkeys(("list", "tuple", "set"), "a list")
)
"""First part of a pydantic error type → the expected type in words."""
_NAMES: dict[type, str] = {bool: "a boolean", str: "a string", int: "an integer", float: "a number"}
_NAMES |= {dict: "a mapping", list: "a list", NoneType: "nothing"}
_SHOWN = 60


def problems(
    error: ValidationError,
    model: type[BaseModel],
    job: JobFile,
    base: Path,
    kind: type[RolemeshError],
    elsewhere: Elsewhere = lambda path, where: None,
) -> list[RolemeshError]:
    """Return one error of `kind` per place, in the order of the document. `base` is the path of the
    validated value.

    `elsewhere` returns the error for an unknown key that belongs to another part of the job file,
    else None.
    """
    grouped: dict[tuple[Path, bool], list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        wrong_type = _expected(details) is not None
        grouped.setdefault((_path(details, job.places, base), wrong_type), []).append(details)
    order = {path: position for position, path in enumerate(job.places.lines)}
    result: list[RolemeshError] = []
    for (path, wrong_type), group in sorted(
        grouped.items(), key=lambda item: order[job.places.resolve(item[0][0])[0]]
    ):
        if wrong_type:
            expected = " or ".join(dict.fromkeys(filter(None, map(_expected, group))))
            inside = (*path[len(base) :], *((0,) if expected == "a list" else ()))
            names = isinstance(given := group[0]["input"], str) and "use" in known_keys(
                model, inside
            )
            result.append(_wrong_type(expected, given, path, job, kind, names=names))
        else:
            for details in group:
                error_here = None
                if details["type"] == "extra_forbidden":
                    error_here = elsewhere(path, job.where(path))
                result.append(error_here or _other(details, path, model, job, kind))
    return result


def _path(details: ErrorDetails, places: Places, base: Path) -> Path:
    """Return the error's location without the parts that pydantic adds for branches of a union."""
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
    head, _, tail = details["type"].partition("_")
    tails = ("type", "parsing", "from_float", "attributes_type", "required")
    return _EXPECTED.get(head) if tail in tails else None


def _wrong_type(
    expected: str, found: Any, path: Path, job: JobFile, kind: type[RolemeshError], *, names: bool
) -> RolemeshError:
    name = _NAMES.get(type(found), type(found).__name__)
    if job.is_secret(path):
        got = f"the variable's value ({name})"
    elif found is None or isinstance(found, dict | list):
        got = name
    else:
        shown = str(found).lower() if isinstance(found, bool) else repr(found)
        got = f"{shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '…'} ({name})"
    remedy = None
    if names:
        remedy = (
            f'write {"[" * (expected == "a list")}{{use: "{found}"}}{"]" * (expected == "a list")}'
        )
    elif expected == "a string" and isinstance(found, int | float):
        remedy = "put it in quotes"
    elif expected == "a list" and isinstance(found, dict):
        remedy = "begin each entry with '- ', or write [ … ]"
    elif found is None:
        remedy = "give it a value, or leave the key out"
    return kind(f"expected {expected}, got {got}", where=job.where(path), remedy=remedy)


def _other(
    details: ErrorDetails,
    path: Path,
    model: type[BaseModel],
    job: JobFile,
    kind: type[RolemeshError],
) -> RolemeshError:
    where = job.where(path)
    key = str(details["loc"][-1]) if details["loc"] else ""
    known = known_keys(model, details["loc"][:-1])
    if details["type"] == "extra_forbidden":
        return kind(f"unknown key {key!r}", where=where, remedy=nearest(key, known))
    if details["type"] == "missing":
        remedy = f"add it: {key}: …" if key in known else "add it"
        return kind(f"{key!r} is missing", where=where, remedy=remedy)
    cause = (details.get("ctx") or {}).get("error")
    text = details["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return kind(text if cause is None else str(cause), where=where)


def _branches(annotation: Any) -> Iterable[Any]:
    """Return the types of a union; other types are returned as the only item."""
    args = get_args(annotation)
    inside = {Annotated: args[:1], Union: args, types.UnionType: args}.get(get_origin(annotation))
    if inside is None:
        return [annotation]
    return [each for option in inside for each in _branches(option)]


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _below(annotation: Any, part: str | int) -> Iterable[Any]:
    if is_model(annotation):
        fields = annotation.model_fields.items()
        found = [
            info.annotation
            for name, info in fields
            if part in (name, info.alias, info.validation_alias)
        ]
    else:
        return items_of(annotation)
    return [branch for each in found for branch in _branches(each)]


def items_of(annotation: Any) -> list[Any]:
    """Return the types of the values in a list or mapping of this type; empty for other types."""
    origin = get_origin(annotation)
    is_container = isinstance(origin, type) and issubclass(origin, Collection)
    return [*_branches(get_args(annotation)[-1])] if is_container else []


def annotations_at(model: type[BaseModel], path: Path) -> list[Any]:
    """Return the types that may stand at `path` below `model`. Parts that name no field, such as
    pydantic's union tags, are skipped.

    A single mapping may replace a list of one, so the fields of a list's items are also found
    without an index.
    """
    found: list[Any] = [model]
    for part in path:
        deeper = [inner for annotation in found for inner in _below(annotation, part)]
        if not deeper and isinstance(part, str):
            items = [inner for a in found if get_origin(a) is list for inner in _below(a, 0)]
            deeper = [inner for annotation in items for inner in _below(annotation, part)]
        found = deeper or found
    return found


def has_key(annotations: Sequence[Any], path: Path) -> bool:
    """Return whether one of these types is a model that has a key at `path`."""
    found = [annotation for annotation in annotations if is_model(annotation)]
    for part in path:
        found = [inner for annotation in found for inner in _below(annotation, part)]
    return bool(found)


def known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """Return the field names that a mapping at `path` may have; empty if it accepts any name."""
    return keys_of(annotations_at(model, path))


def keys_of(annotations: Sequence[Any]) -> list[str]:
    """Return the field names of the models among these types."""
    fields = [each.model_fields.items() for each in annotations if is_model(each)]
    return list(dict.fromkeys(info.alias or name for each in fields for name, info in each))
