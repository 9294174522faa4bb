"""YAML with places: parses a text into plain data and remembers on which line each key stands.

Scalars follow YAML 1.2's core schema (``1e-5`` is a number, ``on`` and ``2026-01-01`` are strings),
unlike PyYAML's default. Duplicate keys are errors. A variable may stand unquoted in a flow mapping,
``{model: ${MODEL}}``, where plain YAML would take its brace for another mapping.
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
"""How the places of overrides begin."""

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value: ``("failover", 0, "use")``."""

_RESOLVERS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.inf|\.nan",
    "merge": r"<<",
}
"""The whole of a plain scalar, by its kind."""


class Quoted(str):
    """A string with variables that was written in quotes, and stays so: its variables do not become
    numbers."""


class _Loader(yaml.SafeLoader):
    """Reads nodes before it makes data of them: where they stand, and what is wrong with their
    keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._seen: set[yaml.Node] = set()

    def read(
        self,
        node: yaml.Node,
        path: Path,
        line: int,
        places: Places,
        inside: tuple[yaml.Node, ...] = (),
    ) -> Iterator[RolemeshError]:
        """Note the places of `node` and all below it, and show the variables. An alias is read
        wherever it stands."""
        if node in inside:
            where = f"{places.file}:{node.start_mark.line + 1}: {dotted(path)}"
            raise JobFileError("an anchor contains itself", where=where, remedy="write it out")
        inside = (*inside, node)
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

    def _wrong_keys(self, node: yaml.MappingNode, path: Path, file: str) -> Iterator[RolemeshError]:
        lines: dict[str, int] = {}
        for key, _ in list(node.value):
            place = f"{file}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                yield JobFileError("a key must be a plain word", where=f"{place}: {dotted(path)}")
                node.value = [pair for pair in node.value if pair[0] is not key]
                continue
            key.value = key.value.translate(_SHOW)
            if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
                what = f"duplicate key {key.value!r}, first given on line {lines[key.value]}"
                where = f"{place}: {dotted((*path, key.value))}"
                yield JobFileError(what, where=where, remedy="remove one of the two")
            lines.setdefault(key.value, key.start_mark.line + 1)


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
}
"""By what PyYAML says."""
_VARIABLE = re.compile(r"\$\{[^}\n\"']*\}")
_HIDE = {ord(char): 0x10FF00 + ord(char) for char in "{}[],:#"}
_SHOW = {hidden: char for char, hidden in _HIDE.items()}


def dotted(path: Path) -> str:
    """``roles.trainer.use`` — the way an override names a value."""
    return ".".join(str(part) for part in path)


@dataclass
class Places:
    """Where each value of a document was written."""

    file: str
    lines: dict[Path, str] = field(default_factory=dict)

    def resolve(self, path: Path) -> tuple[Path, Path]:
        """The longest part of `path` that was written, and the rest.

        An index into something that is not a list is passed over: where a single mapping may stand
        for a list of one, both spellings have the same place.
        """
        known: Path = ()
        for position, part in enumerate(path):
            if (*known, part) in self.lines:
                known = (*known, part)
            elif not isinstance(part, int) or (*known, 0) in self.lines:
                return known, path[position:]
        return known, ()

    def where(self, path: Path) -> str:
        """``job.yaml:12: roles.trainer.use``; for what is not there, the line of the nearest thing
        around it."""
        known, rest = self.resolve(path)
        place = self.lines.get(known, self.file)
        name = dotted((*known, *rest))
        named = tuple(f"{COMMAND_LINE}: {name}{operator}" for operator in ("=", ":="))
        return place if not name or place.startswith(named) else f"{place}: {name}"

    def replace(self, path: Path, place: str, value: Any) -> None:
        """Forget what was below `path`; everything in `value` now comes from `place`."""
        for known in [p for p in self.lines if p[: len(path)] == path]:
            del self.lines[known]
        self.lines |= dict.fromkeys(_paths(value, path), place)


def _paths(value: Any, path: Path) -> Iterator[Path]:
    yield path
    items: Any = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from _paths(item, (*path, key))


def parse_yaml(text: str, file: str) -> tuple[Any, Places]:
    """The document as plain data, and its places. Raises `JobFileError` (or several) with file,
    line and column."""
    loader = _Loader(_VARIABLE.sub(lambda match: match[0].translate(_HIDE), text))
    try:
        node = loader.get_single_node()
        places = Places(file)
        if node is None:
            return None, places
        raise_all(list(loader.read(node, (), node.start_mark.line + 1, places)))
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        parts = [part for part in (error.context, error.problem) if part]
        known = (remedy for sign, remedy in _REMEDIES.items() if sign in (error.problem or ""))
        remedy = next(known, "check the indentation, brackets and quotes around this line")
        raise JobFileError(
            f"not valid YAML: {', '.join(parts)}", where=place, remedy=remedy
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"not valid YAML: the character #x{ord(str(error.character)):04x} is not allowed"
        raise JobFileError(
            what, where=f"{file}:{line}", remedy="save the file as UTF-8 text"
        ) from None
    finally:
        loader.dispose()
    return data, places


def parse_scalar(text: str) -> Any:
    """What YAML makes of a plain scalar: a number, true or false, or the text itself."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag in {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool")}:
        return yaml.load(text, Loader=_Loader)
    return text


def flow_yaml(data: Any) -> str:
    """Plain data as YAML on one line."""
    text = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=math.inf,
    )
    return text.removesuffix("...\n").strip()


def dump_yaml(data: Any) -> str:
    """Plain data as YAML that `parse_yaml` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
