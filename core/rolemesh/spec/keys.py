"""Which keys a pydantic model allows at a path: for suggestions, and to tell a misspelled path from a new one."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rolemesh.spec.places import Path

__all__ = ["annotations_at", "known_keys"]


def _flatten(annotation: Any) -> Iterable[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _flatten(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from _flatten(option)
    else:
        yield annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _below(annotation: Any, part: str | int) -> Iterable[Any]:
    if _is_model(annotation):
        for name, info in annotation.model_fields.items():
            if part in (name, info.alias, info.validation_alias):
                yield from _flatten(info.annotation)
        return
    origin, args = get_origin(annotation), get_args(annotation)
    if not isinstance(origin, type):
        return
    if issubclass(origin, Mapping) and len(args) == 2:
        yield from _flatten(args[1])
    elif issubclass(origin, Sequence | set | frozenset) and args:
        yield from _flatten(args[0])


def annotations_at(model: type[BaseModel], path: Path) -> list[Any]:
    """The types that may stand at `path` below `model`; parts that name no field (pydantic's union tags) are skipped.

    A single mapping may stand for a list of one, so the field of a list's items is found without an index too.
    """
    found: list[Any] = [model]
    for part in path:
        deeper = [inner for annotation in found for inner in _below(annotation, part)]
        if not deeper and isinstance(part, str):
            items = [inner for a in found if get_origin(a) is list for inner in _below(a, 0)]
            deeper = [inner for annotation in items for inner in _below(annotation, part)]
        found = deeper or found
    return found


def known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """The names of the fields that a mapping at `path` may have; empty where any name goes."""
    keys: dict[str, None] = {}
    for annotation in annotations_at(model, path):
        if _is_model(annotation):
            keys |= dict.fromkeys(info.alias or name for name, info in annotation.model_fields.items())
    return list(keys)
