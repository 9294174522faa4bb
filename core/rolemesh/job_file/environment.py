"""Replace ``${VAR}`` and ``${VAR:-default}`` in the strings of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rolemesh.errors import JobFileError, RolemeshError, did_you_mean
from rolemesh.job_file.places import Path, Places, Quoted, dotted, parse_scalar

_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{(?P<bad>[^}]*)\}?"
)


class Expansion:
    """Replaces environment variables in plain data.

    `used` collects the variables, `expanded` the paths of the values that contain one, and `errors`
    the undefined ones.

    An unquoted scalar that consists of one variable is read as if its value were in the file: it
    becomes a number or a boolean if it looks like one. The ``env_vars`` of a role always stay
    strings. ``$${`` stands for ``${``.
    """

    def __init__(self, environ: Mapping[str, str], places: Places) -> None:
        self.environ = environ
        self.places = places
        self.used: dict[str, str] = {}
        self.expanded: set[Path] = set()
        self.errors: list[RolemeshError] = []

    def expand(self, value: Any, path: Path = ()) -> Any:
        """Return a copy of `value` with every variable replaced."""
        if isinstance(value, dict):
            return {key: self.expand(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        text = _REFERENCE.sub(lambda match: self._one(match, path), value)
        whole = (match := _REFERENCE.fullmatch(value)) is not None and match["name"] is not None
        if any(match["name"] for match in _REFERENCE.finditer(value)):
            self.expanded.add(path)
        keep = isinstance(value, Quoted) or (
            path[:1] == ("roles",) and path[2:4] == ("runtime_env", "env_vars")
        )
        return parse_scalar(text) if whole and not keep else text

    def _one(self, match: re.Match[str], path: Path) -> str:
        if match[0] == "$${":
            return "${"
        where = self.places.where(path)
        if (name := match["name"]) is None:
            what = f"{match[0]!r} is not a variable"
            remedy = "write ${NAME}, or $${ for the characters ${"
            self.errors.append(JobFileError(what, where=where, remedy=remedy))
            return ""
        value = self.environ.get(name) or match["default"] or ""
        if name not in self.environ and match["default"] is None:
            close = did_you_mean(name, self.environ)
            hint = f"; {close}" if close else ""
            what = f"the environment variable {name} is not set{hint}"
            remedy = f"export {name}=…, or give a default: ${{{name}:-value}}"
            self.errors.append(JobFileError(what, where=where, remedy=remedy))
        self.used[name] = value
        return value


def literal(value: Any, where: str = "", path: Path = ()) -> Any:
    """Return `value` as data that a job file reads back unchanged: ``${`` is escaped.

    Paths become strings, and tuples become lists. Raises `JobFileError`, with the place below
    `where`, for objects that YAML cannot express and for data nested more than 100 deep.
    """
    match value:
        case None | bool():
            return value
        case str() | PurePath():
            return (str.__str__(value) if isinstance(value, str) else str(value)).replace(
                "${", "$${"
            )
        case int() | float():
            return int(value) if isinstance(value, int) else float(value)
        case Mapping() if len(path) < 100 and all(type(key) in (str, int, float) for key in value):
            return {key: literal(item, where, (*path, key)) for key, item in value.items()}
        case list() | tuple() if len(path) < 100:
            return [literal(item, where, (*path, index)) for index, item in enumerate(value)]
    what = f"a job file cannot hold {type(value).__name__} {value!r:.60}"
    remedy = (
        "give strings, numbers, True, False, None, lists and dicts; name code as "
        "'package.module:name'"
    )
    raise JobFileError(what, where=f"{where}: {dotted(path)}", remedy=remedy)
