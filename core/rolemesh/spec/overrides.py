"""``roles.trainer.world_size=4``: values from the command line, put over those of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_origin

from rolemesh.errors import JobFileError, RolemeshError, nearest
from rolemesh.spec.model import JobSpec
from rolemesh.spec.places import COMMAND_LINE, Path, Places, dotted, parse_yaml
from rolemesh.spec.problems import annotations_at, known_keys

SHOWN = 60
"""Characters of an override that a place shows; longer ones are cut after the ``=``."""


def apply_overrides(data: Any, places: Places, overrides: Sequence[str]) -> list[RolemeshError]:
    """Change `data` and `places` in place, in the order given; return what was wrong."""
    errors: list[RolemeshError] = []
    for text in overrides:
        try:
            _apply(data, places, text)
        except JobFileError as error:
            errors.append(error)
    return errors


def _apply(data: Any, places: Places, text: str) -> None:
    name, equals, value_text = text.partition("=")
    place = f"{COMMAND_LINE}: {text if len(text) <= SHOWN else f'{name}=…'}"
    parts = name.strip().split(".")
    if not equals or not all(parts):
        remedy = "write it as path.to.key=value, e.g. steps=10"
        raise JobFileError(f"{text!r} is not an override", where=COMMAND_LINE, remedy=remedy)
    value, _ = parse_yaml(value_text, place)
    container, path = _container(data, parts, place, places)
    key = _step(container, parts[-1], path, place)
    if isinstance(container, list):
        container[int(key)] = value
    else:
        container[key] = value
    places.replace((*path, key), place, value)


def _container(data: Any, parts: list[str], place: str, places: Places) -> tuple[Any, Path]:
    """The mapping or list that holds the last part, made on the way where the job file may have it."""
    current: Any = data
    path: Path = ()
    for position, part in enumerate(parts[:-1]):
        if isinstance(current, dict) and part == "0" and _single_for_list(path):
            continue
        if isinstance(current, dict) and (part not in current or current[part] is None):
            known = list(current) if path == ("roles",) else known_keys(JobSpec, path)
            if known and part not in known:
                raise JobFileError(f"there is no {dotted((*path, part))}", where=place, remedy=nearest(part, known))
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
        what = f"{dotted(path)} is a list of {len(container)}, so {part!r} is not in it"
        remedy = f"use an index from 0 to {len(container) - 1}" if container else f"set {dotted(path)} itself"
        raise JobFileError(what, where=place, remedy=remedy)
    return int(part)


def _single_for_list(path: Path) -> bool:
    return bool(path) and any(get_origin(annotation) is list for annotation in annotations_at(JobSpec, path))
