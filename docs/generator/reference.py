"""The API pages: of every public name its signature, its docstring, its fields and its methods, from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml

__all__ = ["PAGES", "page"]

PAGES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("reference.yaml").read_text())
"""Name of a page → its title, its first sentence, and its names."""
MADE = "<!-- Made by `python -m docs.generator` from signatures and docstrings. -->"
SHOWN = ("__call__", "__getitem__", "__len__", "__iter__", "__contains__", "__or__", "__enter__", "__exit__")
"""Special methods that a reader calls, by what they stand for."""
MODELS = ("BaseModel", "Struct", "OfRank", "NamedTuple", "TypedDict", "Options", "Budget")
"""Bases of classes that are their fields."""
WIDTH = 100
LONGEST = 120
"""A line of code, as the formatter has it, which looks at documents, too."""
"""Characters that a signature may have in one line."""


def page(name: str) -> str:
    """The page `name`, as Markdown."""
    made = PAGES[name]
    parts = [f"# {made['title']}", MADE, made["intro"]]
    for path in made["names"]:
        parts += _described(path.rpartition(".")[2], _found(path), 2)
    return "\n\n".join(parts) + "\n"


@cache
def _package(name: str) -> griffe.Module:
    return griffe.load(name, resolve_aliases=False)  # type: ignore[return-value]


def _found(path: str) -> Any:
    package, _, rest = path.partition(".")
    found: Any = _package(package)[rest]
    return found.final_target if found.is_alias else found


def _described(shown: str, what: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{shown}`"
    if level == 2:
        yield f"From `{what.parent.path}`."
    if what.is_attribute:
        line = f"{shown} = {what.value}"
        head, bracket, inner = line.removesuffix("]").partition("[")
        if len(line) > LONGEST and bracket:
            if len(inner) > LONGEST - 4:
                inner = inner.replace(", ", ",\n    ") + ","
            line = f"{head}[\n    {inner}\n]"
        yield _code(line)
        yield from _prose(what)
        return
    if what.is_function:
        yield _code(_signature(what))
        yield from _prose(what)
        return
    bases = ", ".join(str(base).rpartition(".")[2] for base in what.bases)
    init = what.members.get("__init__")
    arguments = _arguments(init) if init is not None and not init.is_alias else []
    yield _code(_call(f"class {shown}", [bases] if bases else [], "") if not arguments else _call(shown, arguments, ""))
    yield from _prose(what)
    fields = list(_fields(what))
    if fields:
        yield "\n".join(["| | type | default | |", "| --- | --- | --- | --- |", *map(_row, fields)])
    methods = [member for member in what.members.values() if not member.is_alias and member.is_function]
    tests = [method for method in methods if method.name.startswith("test_")]
    if tests:
        yield "\n".join(["| test | |", "| --- | --- |", *map(_test, tests)])
    for method in methods:
        if method not in tests and (not method.name.startswith("_") or method.name in SHOWN):
            yield from _described(f"{shown}.{method.name}", method, level + 1)


def _test(method: Any) -> str:
    return f"| `{method.name}` | {_cell(' '.join(method.docstring.value.split()) if method.docstring else '')} |"


def _fields(cls: Any) -> Iterator[Any]:
    """The fields of `cls`, those of a rank's name first if it inherits them."""
    if "OfRank" in map(str, cls.bases):
        yield from _fields(_found("rolemesh.api.rank_ref.OfRank"))
    yield from filter(_is_field, cls.members.values())


def _is_field(member: Any) -> bool:
    if member.is_alias or not member.is_attribute or member.name.startswith("_"):
        return False
    return member.annotation is not None or member.docstring is not None or "property" in member.labels


def _row(field: Any) -> str:
    default, said = _default(field)
    words = " ".join((field.docstring.value if field.docstring else said).split())
    return (
        "| "
        + " | ".join(_cell(text) for text in (_literal(field.name), _literal(field.annotation), default, words))
        + " |"
    )


def _default(field: Any) -> tuple[str, str]:
    """Return the default of a field, and its description if ``Field(…)`` has one."""
    if "property" in field.labels:
        return "property", ""
    if field.value is None:
        return "required" if _is_model(field.parent) else "", ""
    text = str(field.value)
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call) or ast.unparse(tree.func) not in (
        "Field",
        "field",
        "pydantic.Field",
        "msgspec.field",
    ):
        return _literal(text), ""
    given = {keyword.arg: keyword.value for keyword in tree.keywords}
    said = given.get("description")
    value = tree.args[0] if tree.args else given.get("default", given.get("default_factory"))
    default = "required" if value is None or ast.unparse(value) in ("...", "Ellipsis") else _literal(ast.unparse(value))
    return default, ast.literal_eval(said) if isinstance(said, ast.Constant) else ""


def _is_model(cls: Any) -> bool:
    return any(str(base).rpartition(".")[2] in MODELS for base in cls.bases)


def _signature(function: Any) -> str:
    kind = "".join(f"@{label}\n" for label in ("classmethod", "staticmethod") if label in function.labels)
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return kind + _call(
        f"{'async ' if 'async' in function.labels else ''}def {function.name}", _arguments(function), returns
    )


def _arguments(function: Any) -> list[str]:
    out, only = [], False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind, ""
        )
        if parameter.kind is griffe.ParameterKind.keyword_only and not only:
            only = True
            if not any(text.startswith("*") for text in out):
                out.append("*")
        typed = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = "" if star or parameter.default is None else f"{' = ' if typed else '='}{parameter.default}"
        out.append(f"{star}{parameter.name}{typed}{default}")
    return out


def _call(head: str, arguments: list[str], tail: str) -> str:
    line = f"{head}({', '.join(arguments)}){tail}" if arguments or not head.startswith("class") else head
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {argument}," for argument in arguments), f"){tail}"])


def _code(text: str) -> str:
    """`text` with the quotes that the formatter of this repository has."""
    return "```python\n" + text.replace("'", '"') + "\n```"


def _prose(what: Any) -> Iterator[str]:
    for section in griffe.parse(what.docstring, "google") if what.docstring else ():
        if isinstance(section, griffe.DocstringSectionText):
            yield section.value.strip()
        elif isinstance(section, griffe.DocstringSectionExamples):
            yield from (
                text if kind is griffe.DocstringSectionKind.text else f"```pycon\n{text}\n```"
                for kind, text in section.value
            )
        elif isinstance(section, griffe.DocstringSectionAdmonition):
            yield f"**{section.title}** {section.value.description.strip()}"
        else:
            title = f"**{section.kind.value.replace('_', ' ').capitalize()}**"
            yield "\n".join([title, "", *map(_item, section.value)])


def _item(item: Any) -> str:
    name = getattr(item, "name", "") or str(getattr(item, "annotation", "") or "")
    return f"- `{name}`: {' '.join(item.description.split())}" if name else f"- {' '.join(item.description.split())}"


def _literal(text: object) -> str:
    return f"`{text}`" if text is not None and str(text) else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
