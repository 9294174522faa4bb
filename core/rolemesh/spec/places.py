"""YAML with places: parses a text into plain data and remembers on which line each key stands.

Scalars follow YAML 1.2's core schema (``1e-5`` is a number, ``on`` and ``2026-01-01`` are strings), unlike PyYAML's
default. Duplicate keys are errors. A variable may stand unquoted in a flow mapping, ``{model: ${MODEL}}``, where plain
YAML would take its brace for another mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from rolemesh.errors import JobFileError, RolemeshError, raise_all

__all__ = ["COMMAND_LINE", "Path", "Places", "Quoted", "dotted", "dump_yaml", "parse_scalar", "parse_yaml"]

COMMAND_LINE = "command line"
"""How the places of overrides begin."""

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value: ``("failover", 0, "use")``."""

_RESOLVERS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"),
        list("-+0123456789."),
    ),
    ("merge", re.compile(r"^<<$"), ["<"]),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(node.value.replace(".inf", "inf").replace(".nan", "nan"))


class Quoted(str):
    """A string that `dump_yaml` writes in quotes."""


_Dumper.add_representer(
    Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)

for _kind in (_Loader, _Dumper):
    for _tag, _pattern, _first in _RESOLVERS:
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


_VARIABLE = re.compile(r"\$\{[^}\n]*\}")
_HIDE = {ord(char): 0x10FF00 + ord(char) for char in "{}[],:#"}
_SHOW = {hidden: char for char, hidden in _HIDE.items()}


def dotted(path: Path) -> str:
    """``roles.trainer.use`` — the way an override names a value."""
    return ".".join(str(part) for part in path)


@dataclass
class Places:
    """Where each value of a document was written. `lists` are the paths that hold a list."""

    file: str
    lines: dict[Path, str] = field(default_factory=dict)
    lists: set[Path] = field(default_factory=set)
    quoted: set[Path] = field(default_factory=set)

    def resolve(self, path: Path) -> tuple[Path, Path]:
        """The longest part of `path` that was written, and the rest.

        An index into something that is not a list is passed over: where a single mapping may stand for a list of
        one, both spellings have the same place.
        """
        known: Path = ()
        for position, part in enumerate(path):
            if (*known, part) in self.lines:
                known = (*known, part)
            elif not (isinstance(part, int) and known not in self.lists):
                return known, path[position:]
        return known, ()

    def where(self, path: Path) -> str:
        """``job.yaml:12: roles.trainer.use``; for what is not there, the line of the nearest thing around it."""
        known, rest = self.resolve(path)
        place = self.lines.get(known, self.file)
        name = dotted((*known, *rest))
        return place if not name or place.startswith(f"{COMMAND_LINE}: {name}=") else f"{place}: {name}"

    def replace(self, path: Path, place: str, value: Any) -> None:
        """Forget what was below `path`; everything in `value` now comes from `place`."""
        for known in [p for p in self.lines if p[: len(path)] == path]:
            del self.lines[known]
            self.lists.discard(known)
            self.quoted.discard(known)
        for below, item in _walk(value, path):
            self.lines[below] = place
            if isinstance(item, list):
                self.lists.add(below)


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, value
    items: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _walk(item, (*path, key))


def parse_yaml(text: str, file: str) -> tuple[Any, Places]:
    """The document as plain data, and its places. Raises `JobFileError` (or several) with file, line and column."""
    loader = _Loader(_VARIABLE.sub(lambda match: match[0].translate(_HIDE), text))
    try:
        node = loader.get_single_node()
        places = Places(file)
        if node is None:
            return None, places
        _show_variables(node, set())
        errors = list(_duplicates(node, file, ()))
        raise_all(errors)
        data = loader.construct_document(node)
        _record(node, (), places, node.start_mark.line + 1)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        parts = [part for part in (error.context, error.problem) if part]
        raise JobFileError(f"not valid YAML: {', '.join(parts)}", where=place, remedy=_yaml_remedy(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"not valid YAML: the character #x{ord(str(error.character)):04x} is not allowed"
        raise JobFileError(what, where=f"{file}:{line}", remedy="save the file as UTF-8 text") from None
    finally:
        loader.dispose()
    return data, places


def _show_variables(node: yaml.Node, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        node.value = node.value.translate(_SHOW)
    elif isinstance(node, yaml.CollectionNode):
        for item in node.value:
            for part in item if isinstance(item, tuple) else (item,):
                _show_variables(part, seen)


def _yaml_remedy(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or ""
    if "\\t" in problem:
        return "indent with spaces; YAML does not allow tabs"
    if "mapping values are not allowed" in problem:
        return "put a value that contains ': ' in quotes"
    if "alias" in problem:
        return "define the anchor before it is used"
    return "check the indentation, brackets and quotes around this line"


def _duplicates(node: yaml.Node, file: str, path: Path, inside: tuple[yaml.Node, ...] = ()) -> Iterator[RolemeshError]:
    if node in inside:
        line = node.start_mark.line + 1
        raise JobFileError("an anchor contains itself", where=f"{file}:{line}: {dotted(path)}", remedy="write it out")
    inside = (*inside, node)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield JobFileError("a key must be a plain word", where=f"{file}:{line}: {dotted(path)}")
                continue
            here = (*path, key.value)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                yield JobFileError(
                    f"duplicate key {key.value!r}, first given on line {seen[key.value]}",
                    where=f"{file}:{line}: {dotted(here)}",
                    remedy="remove one of the two",
                )
            seen.setdefault(key.value, line)
            yield from _duplicates(value, file, here, inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, file, (*path, index), inside)


def _record(node: yaml.Node, path: Path, places: Places, line: int) -> None:
    places.lines[path] = f"{places.file}:{line}"
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _record(value, (*path, _key(key)), places, key.start_mark.line + 1)
    elif isinstance(node, yaml.SequenceNode):
        places.lists.add(path)
        for index, item in enumerate(node.value):
            _record(item, (*path, index), places, item.start_mark.line + 1)
    elif isinstance(node, yaml.ScalarNode) and node.style is not None:
        places.quoted.add(path)


def _key(node: yaml.ScalarNode) -> Any:
    return parse_scalar(node.value) if node.style is None else node.value


def parse_scalar(text: str) -> Any:
    """What YAML makes of a plain scalar: a number, true or false, or the text itself."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag in {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool")}:
        return yaml.load(text, Loader=_Loader)
    return text


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that `parse_yaml` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
