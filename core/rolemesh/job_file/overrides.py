"""Overrides such as ``roles.trainer.world_size=4``: values from the command line that replace those
of the job file.

- ``PATH=TEXT`` sets the text as it was typed. The shell has already expanded it, so ``${…}``, ``#``
  and blanks stay. If the option takes a string, the text is the value. Otherwise the text is read
  as a value if all of it is a number, ``true``, ``false``, ``null``, a list ``[…]``, a mapping
  ``{…}`` or a quoted string.
- ``PATH:=YAML`` sets YAML with the rules of a job file, including variables.
- ``%PATH=TEXT`` is ``PATH=TEXT`` percent-encoded, so that it passes any number of shells unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin
from urllib.parse import unquote

from pydantic import BaseModel, SecretStr

from rolemesh.errors import JobFileError, RolemeshError, nearest
from rolemesh.job_file.environment import literal
from rolemesh.job_file.misplaced import misplaced
from rolemesh.job_file.model import JobSpec
from rolemesh.job_file.places import COMMAND_LINE, Path, Places, dotted, parse_scalar, parse_yaml
from rolemesh.job_file.problems import annotations_at, known_keys

SHOWN = 60
"""Maximum length of an override, in characters, that a place shows in full. Longer ones are cut
after the ``=``."""
_PART = r'(?:\[[^\]]*\]|"[^"]*"|[^.=\[\]"]+?)'
_OVERRIDE = re.compile(rf"\s*({_PART}(?:\.{_PART}|(?=\[){_PART})*)\s*(:?)=(.*)", re.DOTALL)
_KEY = re.compile(r'\["?([^\]]*?)"?\]|"([^"]*)"|([^.\[\]"]+)')
_KINDS: Sequence[tuple[Any, str]] = (
    (bool, "bool"),
    ((int, float), "number"),
    ((str, bytes, PurePath, SecretStr), "text"),
    ((Mapping, BaseModel), "mapping"),
    (Collection, "list"),
    (NoneType, "null"),
)
"""Base class of a type → the kind of text that it accepts."""
Types: TypeAlias = Callable[[Any, Path], Sequence[Any]]
"""Function that takes a job file's data and a path, and returns the types that may stand there;
empty if unknown."""


def types_of_spec(data: Any, path: Path) -> Sequence[Any]:
    """Return the types of the job file's own keys; see `Types`."""
    return annotations_at(JobSpec, path)


def apply_overrides(
    data: Any, places: Places, overrides: Sequence[str], types: Types
) -> list[RolemeshError]:
    """Apply the overrides to `data` and `places`, in the given order. Return the errors."""
    errors: list[RolemeshError] = []
    for text in overrides:
        try:
            _apply(
                data,
                places,
                unquote(text[1:], errors="surrogateescape") if text[:1] == "%" else text,
                types,
            )
        except JobFileError as error:
            errors.append(error)
    return errors


def _apply(data: Any, places: Places, text: str, types: Types) -> None:
    if (found := _OVERRIDE.fullmatch(text)) is None:
        remedy = "write it as path.to.key=value, e.g. steps=10"
        raise JobFileError(f"{text!r} is not an override", where=COMMAND_LINE, remedy=remedy)
    place = f"{COMMAND_LINE}: {text if len(text) <= SHOWN else f'{found[1]}=…'}"
    parts = [match[match.lastindex or 0] for match in _KEY.finditer(found[1])]
    for end in range(1, len(parts) - 1):
        holders, below = (types(data, tuple(parts[:number])) for number in (end, end + 1))
        if dict in list[Any](map(get_origin, holders)) and not _kinds(below) & {
            "any",
            "mapping",
            "list",
        }:
            parts[end:] = [".".join(parts[end:])]  # what it holds has no keys, so this is one
    kinds = _kinds(types(data, tuple(parts)))
    if not re.match(r"\s*[^\s#]", found[3]) if found[2] else not found[3] and "text" not in kinds:
        remedy = f"give one; '{found[1]}:=null' sets null, '{found[1]}:=\"\"' an empty string"
        raise JobFileError(
            "there is no value: is a variable of the shell unset?", where=place, remedy=remedy
        )
    value = parse_yaml(found[3], place)[0] if found[2] else literal(_read(found[3], kinds, place))
    container, path = _container(data, parts, place, places, types)
    key = _step(container, parts[-1], path, place)
    container[key] = value
    places.replace((*path, key), place, value)


def _read(text: str, kinds: set[str], place: str) -> Any:
    """Read `text` as a value for an option that accepts these `kinds`."""
    if not kinds & {"text", "any"} and text[:1] in ("[", "{"):
        return parse_yaml(text, place)[0]
    value = _value(text)
    return value if "text" not in kinds or _kinds([type(value)]) & kinds - {"text"} else text


def _value(text: str) -> Any:
    """Read `text` as a value if the type of the option is unknown."""
    if text[:1] + text[-1:] in ("[]", "{}", '""', "''"):
        with suppress(JobFileError):
            value = parse_yaml(text, "")[0]
            # YAML reads {name} as a mapping, and line breaks in quotes as blanks: such a text is no
            # value.
            is_value = {
                "[": isinstance(value, list),
                "{": isinstance(value, dict) and (":" in text or not value),
            }
            if is_value.get(text[0], isinstance(value, str) and "\n" not in text):
                return value
    return None if text in ("null", "Null", "NULL") else text if "_" in text else parse_scalar(text)


def _kinds(types: Sequence[Any]) -> set[str]:
    """Return the kinds of text that these types accept; just ``any`` if one of them accepts
    everything."""
    origins = [(get_origin(each) or each, get_args(each)) for each in types]
    classes = [
        cls
        for origin, args in origins
        for cls in (map(type, args) if origin is Literal else [origin])
    ]
    real = [cls if isinstance(cls, type) else object for cls in classes]
    found = {next((kind for base, kind in _KINDS if issubclass(cls, base)), "any") for cls in real}
    return found if found and "any" not in found else {"any"}


def _container(
    data: Any, parts: list[str], place: str, places: Places, types: Types
) -> tuple[Any, Path]:
    """Return the mapping or list that holds the last part of a path. Create missing ones if the job
    file may have them."""
    current: Any = data
    path: Path = ()
    for position, part in enumerate(parts[:-1]):
        if isinstance(current, dict) and part == "0" and _single_for_list(path):
            continue
        key = _step(current, part, path, place)
        if isinstance(current, dict) and (key not in current or current[key] is None):
            known = list(current) if path == ("roles",) else known_keys(JobSpec, path)
            if known and part not in known:
                if error := misplaced(types, data, places, (*path, part), place):
                    raise error
                raise JobFileError(
                    f"there is no {dotted((*path, part))}", where=place, remedy=nearest(part, known)
                )
            current[key] = {}
            places.lines[(*path, key)] = place
        path = (*path, key)
        keys = known_keys(JobSpec, path)
        if isinstance(current[key], str) and "use" in keys and parts[position + 1] in keys:
            current[key] = {"use": current[key]}
        current = current[key]
        if not isinstance(current, dict | list):
            what = (
                f"{dotted(path)} is {current!r}, so it has no "
                f"{dotted(tuple(parts[position + 1 :]))!r}"
            )
            raise JobFileError(what, where=place, remedy=f"set {dotted(path)} itself")
    return current, path


def _step(container: Any, part: str, path: Path, place: str) -> str | int:
    if isinstance(container, dict):
        scalar = parse_scalar(part)
        return scalar if scalar in container and part not in container else part
    if not part.isdecimal() or int(part) >= len(container):
        what = f"{dotted(path)} is a list of {len(container)}, so {part!r} is not in it"
        entries = [dotted((*path, number)) for number in range(len(container))]
        remedy = f"set {' or '.join([dotted(path), *entries])}"
        raise JobFileError(what, where=place, remedy=remedy)
    return int(part)


def _single_for_list(path: Path) -> bool:
    return bool(path) and any(
        get_origin(annotation) is list for annotation in annotations_at(JobSpec, path)
    )
