"""``roles.trainer.world_size=4``: values from the command line, put over those of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from rolemesh.errors import JobFileError, RolemeshError, nearest
from rolemesh.spec.keys import annotations_at, known_keys
from rolemesh.spec.places import COMMAND_LINE, Path, Places, dotted, parse_yaml

__all__ = ["apply_overrides"]

SHOWN = 60
"""Characters of an override that a place shows; longer ones are cut after the ``=``."""


def apply_overrides(data: Any, places: Places, overrides: Sequence[str], model: type[BaseModel]) -> list[RolemeshError]:
    """Change `data` and `places` in place, in the order given; return what was wrong."""
    errors: list[RolemeshError] = []
    for text in overrides:
        try:
            _apply(data, places, text, model)
        except JobFileError as error:
            errors.append(error)
    return errors


def _apply(data: Any, places: Places, text: str, model: type[BaseModel]) -> None:
    name, equals, value_text = text.partition("=")
    place = f"{COMMAND_LINE}: {text if len(text) <= SHOWN else f'{name}=…'}"
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise JobFileError(
            f"{text!r} is not an override", where=COMMAND_LINE, remedy="write it as path.to.key=value, e.g. steps=10"
        )
    value, _ = parse_yaml(value_text, place)
    container, path = _container(data, parts, place, places, model)
    key = _step(container, parts[-1], path, place)
    if isinstance(container, list):
        container[int(key)] = value
    else:
        container[key] = value
    places.replace((*path, key), place, value)


def _container(data: Any, parts: list[str], place: str, places: Places, model: type[BaseModel]) -> tuple[Any, Path]:
    """The mapping or list that holds the last part, made on the way where the job file may have it."""
    current: Any = data
    path: Path = ()
    for position, part in enumerate(parts[:-1]):
        if isinstance(current, dict) and part == "0" and _single_for_list(model, path):
            continue
        if isinstance(current, dict) and (part not in current or current[part] is None):
            _refuse_unknown(current, part, path, place, model)
            current[part] = {}
            places.lines[(*path, part)] = place
        key = _step(current, part, path, place)
        current, path = current[key], (*path, key)
        if not isinstance(current, dict | list):
            what = f"{dotted(path)} is {current!r}, so it has no {dotted(tuple(parts[position + 1 :]))!r}"
            raise JobFileError(what, where=place, remedy=f"set {dotted(path)} itself")
    return current, path


def _step(container: Any, part: str, path: Path, place: str) -> str | int:
    if isinstance(container, dict):
        return part
    if not part.isdigit() or int(part) >= len(container):
        raise JobFileError(
            f"{dotted(path)} is a list of {len(container)}, so {part!r} is not in it",
            where=place,
            remedy=f"use an index from 0 to {len(container) - 1}" if container else f"set {dotted(path)} itself",
        )
    return int(part)


def _single_for_list(model: type[BaseModel], path: Path) -> bool:
    return bool(path) and any(get_origin(annotation) is list for annotation in annotations_at(model, path))


def _refuse_unknown(current: dict[Any, Any], part: str, path: Path, place: str, model: type[BaseModel]) -> None:
    known = known_keys(model, path)
    holds_models = any(
        get_origin(annotation) is dict
        and isinstance(get_args(annotation)[1], type)
        and issubclass(get_args(annotation)[1], BaseModel)
        for annotation in annotations_at(model, path)
    )
    if holds_models:
        known = [str(key) for key in current]
    if (known or holds_models) and part not in known:
        raise JobFileError(f"there is no {dotted((*path, part))}", where=place, remedy=nearest(part, known))
