"""The public surface of the kernel as a text, one fact per line: what others have written code and files against.

``python -m tests.surface`` prints it, ``--write`` keeps it in ``tests/data/surface.txt``, and ``--check``, which
``make lint`` runs, compares. Wording (help texts, docstrings, descriptions) is not part of it, nor are
the names of the conformance kit's tests.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args

import msgspec
import typer
from docs.generator.events import journalled
from pydantic import BaseModel

import rolemesh
import rolemesh_durable
import rolemesh_durable.api
import rolemesh_inline.engine
from rolemesh import cli, errors, hookspecs
from rolemesh.cli.verbs import verbs
from rolemesh.kinds import kinds
from rolemesh.plugins.discovery import discover
from rolemesh.plugins.drivers import load
from rolemesh_durable.protocol.master.state import KeptRank
from rolemesh_schema import job_schema
from rolemesh_schema.describe import type_name

INLINE = Path(rolemesh_inline.engine.__file__)
OFFICIAL = tuple(
    f"rolemesh-{name}" for name in ("inline", "function", "pack", "dataplane", "durable", "console", "sources")
)
"""The distributions whose options are part of the surface."""
KERNEL, ENGINE = Path(rolemesh.__file__).parent, Path(rolemesh_durable.__file__).parent
SNAPSHOT = Path(__file__).parent / "data" / "surface.txt"
WHAT_TO_DO = """
The public surface is not what tests/data/surface.txt says.
If that was not meant, others' plugins, job files or scripts would have broken: take it back.
If it was meant: see docs/compatibility.md for what may change when, say it in changes/, then
    python -m tests.surface --write
and commit tests/data/surface.txt with the change.
"""

MODULES = (
    "rolemesh.api.workload",
    "rolemesh.placement",
    "rolemesh.api.observer",
    "rolemesh_dataplane.transports",
    "rolemesh_jobs",
    "rolemesh_testing",
)
"""Modules that plugins import besides ``rolemesh`` itself. A module that does not exist yet is left out."""
CHECKPOINT = ("disk", "export", "layout", "reshard")
"""Modules of ``rolemesh_checkpoint`` for tools that read checkpoints. Its README describes them."""
PROCESSES = ("beginning", "ending", "guard", "openmp", "signals")
"""Modules of ``rolemesh_processes`` for backends and tools. Its README describes them."""

OPERATIONS = ("__getitem__", "__len__", "__iter__", "__contains__", "__or__", "__call__")
"""Special methods that are part of what a class offers."""

WIDTH = 120
"""Characters of a line."""

WORDING = ("title", "description", "examples")
"""Keys of a JSON schema that may change freely."""


def surface() -> str:
    """The whole text, which ends in a newline."""
    parts = [
        ("hooks: name, arguments, answer", hooks()),
        ("plugins: entry-point group, base class, api_version", kind_lines()),
        *((f"{name}: __all__", module(name)) for name in ("rolemesh", *MODULES) if find_spec(name) is not None),
        ("rolemesh_durable.api: names", api_names()),
        *((f"rolemesh_checkpoint.{name}: __all__", module(f"rolemesh_checkpoint.{name}")) for name in CHECKPOINT),
        *((f"rolemesh_processes.{name}: __all__", module(f"rolemesh_processes.{name}")) for name in PROCESSES),
        ("command line: verbs, arguments, options", commands()),
        ("exit codes", exit_codes()),
        ("errors: class, bases, exit code", error_classes()),
        ("job file: JSON schema", [_json(_without_wording(job_schema(())[0]))]),
        ("options of the kernel's own plugins: JSON schema", builtin_options()),
        ("journal: kinds of events", event_kinds()),
        ("states of a rank, as `status --json` and levels see them", get_args(_annotation(KeptRank, "state"))),
    ]
    return "\n".join(f"## {title}\n" + "".join(f"{_folded(line)}\n" for line in lines) for title, lines in parts)


def _folded(line: str) -> str:
    """A long call with a line per argument, so that a difference shows which one has changed."""
    if len(line) <= WIDTH or "\n" in line or "(" not in line:
        return line
    start = line.index("(") + 1
    inner = "\n" + " " * (len(line) - len(line.lstrip()) + 4)
    arguments, depth = [""], 0
    for place, letter in enumerate(line[start:], start):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return line[:start] + "".join(f"{inner}{each.strip()}," for each in arguments) + inner[:-4] + line[place:]
        if depth == 0 and letter == ",":
            arguments.append("")
        else:
            arguments[-1] += letter
    return line


# --------------------------------------------------------------------------------------------------------------- hooks


def hooks() -> Iterator[str]:
    """A line per hook in the order of ``hookspecs.py``."""
    for name, value in vars(hookspecs).items():
        settings = getattr(value, "rolemesh_spec", None)
        if settings is not None:
            first = "; the first answer counts" if settings["firstresult"] else ""
            yield f"{name}{_signature(value)}{first}"


def api_names() -> Iterator[str]:
    """A line per name in the modules of ``rolemesh_durable.api``."""
    for each in iter_modules(rolemesh_durable.api.__path__, "rolemesh_durable.api."):
        yield from (f"{each.name}.{name}" for name in import_module(each.name).__all__)


def kind_lines() -> Iterator[str]:
    """A line per kind of plugin."""
    for kind in kinds().values():
        base = kind.base_class()
        yield f"{kind.group}: {base.__module__}.{base.__name__}, {base.api_version}"


# -------------------------------------------------------------------------------------------------------------- Python


def module(name: str) -> Iterator[str]:
    """Every name of a module's ``__all__``, with members and signatures; what ``rolemesh`` has is only named."""
    offered = import_module(name)
    for public in sorted(offered.__all__):
        if name != "rolemesh" and public in rolemesh.__all__:
            yield f"{public}: as rolemesh.{public}"
        elif public == "__version__":
            yield "__version__: str"
        else:
            yield from _object(public, getattr(offered, public))


def _object(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__mro__[1:] if base.__module__.startswith("rolemesh"))
        yield f"class {name}{_constructor(value)}" + (f": {bases}" if bases else "")
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"def {name}{_signature(value)}"
    elif isinstance(value, int | float | str | tuple | frozenset):
        yield f"{name} = {value!r}"
    elif type(value).__module__ in ("typing", "types") or type(value).__name__ == "GenericAlias":
        shown = re.sub(r"\b[\w.]+[.](?=\w)", "", repr(value))
        yield f"type {name} = {shown}"
    else:
        yield f"{name}: {type(value).__name__}"


def _constructor(cls: type) -> str:
    fields = _fields(cls)
    if fields:
        return f"({', '.join(fields)})"
    if "__init__" not in {name for each in _ours(cls) for name in vars(each)}:
        return ""
    return _signature(cls.__init__).replace("(self, ", "(").replace("(self)", "()").removesuffix(" -> None")  # type: ignore[misc]


def _fields(cls: type) -> list[str]:
    """The fields of a msgspec struct, a pydantic model or a named tuple, as arguments."""
    if issubclass(cls, msgspec.Struct):
        found = []
        for field in msgspec.structs.fields(cls):
            given = f" = {field.default!r}" if field.default is not msgspec.NODEFAULT else ""
            given = f" = {field.default_factory()!r}" if field.default_factory is not msgspec.NODEFAULT else given
            found.append(f"{field.name}: {_annotation_text(cls, field.name)}{given}")
        return found
    if issubclass(cls, BaseModel):
        return [
            f"{name}: {_annotation_text(cls, name)}"
            + ("" if field.is_required() else f" = {field.get_default(call_default_factory=True)!r}")
            for name, field in cls.model_fields.items()
        ]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        defaults: dict[str, Any] = cls._field_defaults  # type: ignore[attr-defined]
        return [
            f"{name}: {cls.__annotations__[name].__forward_arg__}"
            + (f" = {defaults[name]!r}" if name in defaults else "")
            for name in cls._fields
        ]
    return []


def _members(cls: type) -> Iterator[str]:
    taken = {field.partition(":")[0] for field in _fields(cls)}
    found: dict[str, str] = {}
    if is_dataclass(cls):
        found = {field.name: f"self.{field.name}" for field in fields(cls)}
    for owner in _ours(cls):
        for name, value in list(vars(owner).items()):
            if name in found or name in taken or (name.startswith(("_", "test_")) and name not in OPERATIONS):
                continue
            shown = _member(owner, name, value)
            if shown is not None:
                found[name] = shown
        for name in _set_in_init(owner):
            found.setdefault(name, f"self.{name}")
    yield from (found[name] for name in sorted(found))


def _member(owner: type, name: str, value: Any) -> str | None:
    kind = type(value).__name__
    if isinstance(value, classmethod | staticmethod):
        return f"{kind} {name}{_signature(value.__func__)}"
    if isinstance(value, property):
        return f"property {name}: {_bare(inspect.signature(value.fget).return_annotation)}" if value.fget else None
    if inspect.isfunction(value):
        abstract = "abstract " if getattr(value, "__isabstractmethod__", False) else ""
        mark = f"  @operator {value.__rolemesh_operator__}" if hasattr(value, "__rolemesh_operator__") else ""
        return f"{abstract}def {name}{_signature(value)}{mark}"
    if kind == "FixtureFunctionDefinition":
        return f"fixture {name}"
    if inspect.isclass(value):
        return f"{name}: class {value.__name__}"
    if kind in ("member_descriptor", "getset_descriptor") or callable(value):
        return None
    annotation = owner.__annotations__.get(name)
    return f"{name}: {_bare(annotation)} = {value!r}" if annotation else f"{name} = {value!r}"


def _set_in_init(cls: type) -> Iterator[str]:
    """Public attributes that ``__init__`` gives to ``self``."""
    if "__init__" not in vars(cls) or is_dataclass(cls) or issubclass(cls, msgspec.Struct | BaseModel):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["__init__"])))):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if not name.startswith("_"):
                yield name


def _ours(cls: type) -> list[type]:
    return [each for each in cls.__mro__ if each.__module__.startswith("rolemesh")]


def _annotation(cls: type, name: str) -> Any:
    return inspect.get_annotations(cls, eval_str=True)[name]


def _annotation_text(cls: type, name: str) -> str:
    return next(_bare(each.__annotations__[name]) for each in _ours(cls) if name in each.__annotations__)


def _bare(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _signature(function: Any) -> str:
    """As it is written in the source: the annotations are strings."""
    signature = inspect.signature(function)
    shown = [
        parameter.replace(annotation=_Text(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
    ]
    answer = signature.return_annotation
    return str(
        signature.replace(parameters=shown, return_annotation=_Text(answer) if isinstance(answer, str) else answer)
    )


class _Text(str):
    """Is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


# -------------------------------------------------------------------------------------------------------- command line


def commands() -> Iterator[str]:
    """A line per verb, argument and option; verbs below a verb follow it."""
    for name in verbs():
        if "." not in name:
            root = typer.main.get_command(cli._app([name]))
            yield from _command(f"rolemesh {name}", root.commands[name])  # type: ignore[attr-defined]


def _command(path: str, command: Any) -> Iterator[str]:
    yield path
    for parameter in command.params:
        if parameter.name != "help":
            yield f"    {_parameter(parameter)}"
    for name, below in getattr(command, "commands", {}).items():
        yield from _command(f"{path} {name}", below)


def _parameter(parameter: Any) -> str:
    is_option = parameter.opts[0].startswith("-")
    spelled = "/".join((*parameter.opts, *parameter.secondary_opts)) if is_option else parameter.name.upper()
    flag = is_option and parameter.is_flag
    facts = ["flag" if flag else type_name(parameter.type_descriptor.annotation)]
    if parameter.required:
        facts.append("required")
    elif parameter.default is not None and not flag:
        facts.append(f"default {parameter.default}")
    if parameter.envvar:
        facts.append(f"environment {parameter.envvar}")
    return f"{spelled}: {', '.join(facts)}"


# ----------------------------------------------------------------------------------------------------- errors and files


def exit_codes() -> Iterator[str]:
    """A line per exit code."""
    yield from (f"{name} = {value}" for name, value in sorted(vars(errors).items()) if name.startswith("EXIT_"))


def error_classes() -> Iterator[str]:
    """A line per class in ``errors.py``."""
    for name, value in sorted(vars(errors).items()):
        if inspect.isclass(value) and issubclass(value, errors.RolemeshError):
            yield f"{name}({', '.join(base.__name__ for base in value.__bases__)}): {value.exit_code}"


def builtin_options() -> Iterator[str]:
    """The options that a job file may give to the plugins that come with the kernel."""
    for record in discover(environ={}):
        if record.distribution in OFFICIAL:
            found = load(record)
            yield f"{record.kind} {record.name}: {_json(_without_wording(found.Options.model_json_schema()))}"
            if record.kind == "engines":
                run = found.RunOptions.model_json_schema()
                yield f"{record.kind} {record.name}, of a run: {_json(_without_wording(run))}"


def event_kinds() -> list[str]:
    """Return the names of the engines' events in the journal."""
    inline = ast.walk(ast.parse(INLINE.read_text()))
    told = (node.args[0] for node in inline if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._tell")
    return sorted({*journalled(), *(str(kind.value) for kind in told if isinstance(kind, ast.Constant))})


def _without_wording(schema: Any, *, names: bool = False) -> Any:
    """The schema without titles and descriptions; under `names` keys are those of the job file, which stay."""
    if isinstance(schema, Mapping):
        return {
            key: _without_wording(value, names=key in ("properties", "$defs"))
            for key, value in schema.items()
            if names or key not in WORDING
        }
    return [_without_wording(value) for value in schema] if isinstance(schema, list) else schema


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def difference(written: str, found: str) -> str:
    """Return the lines that differ and a remedy; empty if none differs."""
    if written == found:
        return ""
    lines = difflib.unified_diff(written.splitlines(), found.splitlines(), "tests/data/surface.txt", "the code", n=2)
    return "\n".join([*lines, WHAT_TO_DO])


def main(arguments: Iterable[str]) -> int:
    """Print the surface; ``--check`` compares it with the one written down, ``--write`` writes it down."""
    if "--write" in arguments:
        SNAPSHOT.write_text(surface(), encoding="utf-8")
        print(f"wrote {SNAPSHOT}: say in changes/ what has changed, as docs/compatibility.md asks")
        return 0
    if "--check" in arguments:
        wrong = difference(SNAPSHOT.read_text(encoding="utf-8"), surface())
        print(wrong, end="")
        return int(bool(wrong))
    print(surface(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
