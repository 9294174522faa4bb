"""YAML with places: parse a text into plain data and record the line of each key.

Scalars follow the core schema of YAML 1.2, unlike PyYAML's default: ``1e-5`` is a number; ``on``
and ``2026-01-01`` are strings. Duplicate keys are errors. An unquoted variable may stand in a flow
mapping, as in ``{model: ${MODEL}}``; plain YAML would read its brace as the start of another
mapping.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from rolemesh.errors import JobFileError, RolemeshError, raise_all

COMMAND_LINE = "command line"
"""First words of the place of an override."""

Path: TypeAlias = tuple[str | int, ...]
"""Path to a value, as in ``("failover", 0, "use")``."""

MOST_VALUES = 100_000
"""Maximum number of values in a document. An alias counts as what it stands for."""

_RESOLVERS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9_]{0,999})|0x[0-9a-fA-F]{1,999}|0o[0-7]{1,999}",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "merge": r"<<",
}
"""Kind of a plain scalar → pattern that matches the whole scalar."""


class Quoted(str):
    """A string with variables that the file puts in quotes. It stays a string when its variables
    are replaced."""


class _Loader(yaml.SafeLoader):
    """Reads nodes before it constructs data from them: records their places and finds errors in
    their keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._seen: set[yaml.Node] = set()
        self._left = MOST_VALUES

    def read(
        self,
        node: yaml.Node,
        path: Path,
        line: int,
        places: Places,
        inside: tuple[yaml.Node, ...] = (),
    ) -> Iterator[RolemeshError]:
        """Record the places of `node` and of everything below it, and restore the hidden variables.
        An alias is read at each place where it is used."""
        if node in inside:
            where = f"{places.file}:{node.start_mark.line + 1}: {dotted(path)}"
            raise JobFileError("an anchor contains itself", where=where, remedy="write it out")
        inside = (*inside, node)
        self._count(1, node)
        places.lines[path] = f"{places.file}:{line}"
        if isinstance(node, yaml.ScalarNode):
            node.value = node.value.translate(_SHOW)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield from self.read(item, (*path, index), item.start_mark.line + 1, places, inside)
        elif isinstance(node, yaml.MappingNode):
            if node not in self._seen:
                self._seen.add(node)
                yield from self._wrong_keys(node, path, places.file)
                self.flatten_mapping(node)
            for key, value in node.value:
                name = parse_scalar(key.value) if key.style is None else key.value
                yield from self.read(value, (*path, name), key.start_mark.line + 1, places, inside)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self._count(len(node.value), node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            what = f"this is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from None

    def _count(self, values: int, node: yaml.Node) -> None:
        self._left -= values
        if self._left < 0:
            what = f"more than {MOST_VALUES} values, with those that anchors repeat"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)

    def _wrong_keys(self, node: yaml.MappingNode, path: Path, file: str) -> Iterator[RolemeshError]:
        lines: dict[Any, int] = {}
        for key, _ in list(node.value):
            place = f"{file}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                yield JobFileError("a key must be a plain word", where=f"{place}: {dotted(path)}")
                node.value = [pair for pair in node.value if pair[0] is not key]
                continue
            key.value = key.value.translate(_SHOW)
            name = parse_scalar(key.value) if key.style is None else key.value
            key.style = None  # no key is `Quoted`: its variables stay
            if first := lines.get(key.value, lines.get(name)):
                what = f"duplicate key {key.value!r}, first given on line {first}"
                where = f"{place}: {dotted((*path, key.value))}"
                yield JobFileError(what, where=where, remedy="remove one of the two")
            # Python takes 10 and 1e1 for one key.
            lines.setdefault(name, lines.setdefault(key.value, key.start_mark.line + 1))


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return Quoted(node.value) if node.style is not None and "${" in node.value else str(node.value)


def _represent(dumper: _Dumper, text: str) -> yaml.Node:
    # In other styles PyYAML loses some line breaks.
    style = '"' if isinstance(text, Quoted) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


for _text in (str, Quoted):
    _Dumper.add_representer(_text, _represent)
for _kind in (_Loader, _Dumper):
    for _tag, _pattern in _RESOLVERS.items():
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None
        )
_Loader.add_constructor("tag:yaml.org,2002:str", _string)


_REMEDIES = {
    "\\t": "indent with spaces; YAML does not allow tabs",
    "mapping values are not allowed": "put a value that contains ': ' in quotes",
    "alias": "define the anchor before it is used",
    "more than": "move them into a file that an option names",
}
"""Part of PyYAML's message → remedy."""
_VARIABLE = re.compile(r"\$\{[^}\n\"']*\}")
_HIDE = {ord(char): 0x10FF00 + ord(char) for char in "{}[],:#"}
_SHOW = {hidden: char for char, hidden in _HIDE.items()}


def dotted(path: Path) -> str:
    """Return the path as an override spells it: ``roles.trainer.use``."""
    return ".".join(str(part) for part in path)


@dataclass
class Places:
    """The place in the document of each value."""

    file: str
    lines: dict[Path, str] = field(default_factory=dict)

    def resolve(self, path: Path) -> tuple[Path, Path]:
        """Return the longest part of `path` that the document contains, and the rest.

        An index below something that is not a list is skipped. A single mapping may replace a list
        of one, and both spellings then have the same place.
        """
        known: Path = ()
        for position, part in enumerate(path):
            if (*known, part) in self.lines:
                known = (*known, part)
            elif not isinstance(part, int) or (*known, 0) in self.lines:
                return known, path[position:]
        return known, ()

    def where(self, path: Path) -> str:
        """Return ``job.yaml:12: roles.trainer.use``. A path that the document lacks gets the line
        of the nearest value around it."""
        known, rest = self.resolve(path)
        place = self.lines.get(known, self.file)
        name = dotted((*known, *rest))
        named = tuple(f"{COMMAND_LINE}: {name}{operator}" for operator in ("=", ":="))
        return place if not name or place.startswith(named) else f"{place}: {name}"

    def replace(self, path: Path, place: str, value: Any) -> None:
        """Replace the places below `path`: everything in `value` now comes from `place`."""
        for known in [p for p in self.lines if p[: len(path)] == path]:
            del self.lines[known]
        self.lines |= dict.fromkeys(_paths(value, path), place)


def _paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    items = dict(enumerate(value)) if isinstance(value, list) else value
    for key, item in items.items() if isinstance(items, Mapping) else ():
        yield from _paths(item, (*path, key))


def parse_yaml(text: str, file: str) -> tuple[Any, Places]:
    """Return the document as plain data, and its places. Raises `JobFileError`, or `Problems` if
    there are several, with file, line and column."""
    try:
        loader = _Loader(_VARIABLE.sub(lambda match: match[0].translate(_HIDE), text))
        node = loader.get_single_node()
        places = Places(file)
        if node is None:
            return None, places
        raise_all(list(loader.read(node, (), node.start_mark.line + 1, places)))
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        what = f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}"
        known = (remedy for sign, remedy in _REMEDIES.items() if sign in (error.problem or ""))
        remedy = next(known, "check the indentation, brackets and quotes around this line")
        raise JobFileError(what, where=place, remedy=remedy) from None
    except yaml.reader.ReaderError as error:
        place = f"{file}:{text[: error.position].count(chr(10)) + 1}"
        what = f"not valid YAML: the character #x{error.character:04x} is not allowed"
        raise JobFileError(what, where=place, remedy="save the file as UTF-8 text") from None
    except (RecursionError, OverflowError) as error:  # too many brackets, or "\\UFFFFFFFF"
        what, remedy = f"not valid YAML: {error}", "write values as plain as they can be"
        raise JobFileError(what, where=f"{file}:{loader.line + 1}", remedy=remedy) from None
    return data, places


def parse_scalar(text: str) -> Any:
    """Return a plain scalar as YAML reads it: a number, a boolean, or the text itself."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag in {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool")}:
        return yaml.load(text, Loader=_Loader)
    return text


_PLAIN: Any = {"Dumper": _Dumper, "sort_keys": False, "allow_unicode": True}


def flow_yaml(data: Any) -> str:
    """Return plain data as YAML on one line."""
    text: str = yaml.dump(data, **_PLAIN, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML that `parse_yaml` reads back unchanged."""
    text: str = yaml.dump(data, **_PLAIN, width=120)
    return text
