"""Import strings, ``package.module:attr`` or ``path/file.py:attr``: checked in the source, resolved
on demand."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolemesh.api import files
from rolemesh.errors import nearest

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema


def find_module(name: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, without importing the parents. For an alias like ``os.path``
    return the spec of the actual module."""
    head, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(head)
    except ValueError:  # a module that was made by hand has no spec
        spec = None
    found = head
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return getattr(sys.modules.get(name), "__spec__", None)
        found = f"{found}.{part}"
        folders = list(spec.submodule_search_locations)
        try:
            finders = (finder.find_spec(found, folders) for finder in sys.meta_path)
            spec = next(filter(None, finders), None)
        except KeyError:  # a folder without __init__.py, in a package that is not imported
            spec = ModuleSpec(found, None, is_package=True)
        if spec is not None and spec.origin is None:
            # The list of its places would ask for its parent's, which is not imported.
            spec.submodule_search_locations = [str(Path(folder, part)) for folder in folders]
    return spec


def parsed(spec: ModuleSpec) -> ast.Module | None:
    """Return the syntax tree of this module's source, which its loader finds in a file, a zip or
    elsewhere; None without Python source. Raises the errors of reading and parsing."""
    read = getattr(spec.loader, "get_source", None) if spec.origin else None
    source = read(spec.name) if read else None
    return None if source is None else ast.parse(source, str(spec.origin))


def top_level_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds outside functions and classes; ``*`` if it imports all
    names of another one."""
    names: set[str] = set()
    todo: list[ast.AST] = [*tree.body]
    while todo:
        match node := todo.pop():
            case (ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef()) as found:
                names.add(found.name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case _:
                todo += ast.iter_child_nodes(node)
    return names


OWN: list[str] = []
"""Folders of the job's own code, which `import_paths` added to ``sys.path``."""


def import_paths(base: str | Path) -> None:
    """Add the job file's folder and the working directory to ``sys.path`` (once), after all that is
    installed."""
    files.base = str(Path(base).resolve())
    _on_path(Path(files.base), Path.cwd())


def _on_path(*folders: Path) -> None:
    for path in map(str, folders):
        if path not in sys.path:
            sys.path.append(path)
            OWN.append(path)


class ImportRef(str):
    """A pydantic type for options that name code, e.g. a loss function.

    Validation finds the module and the top-level name by reading the source, so that nothing heavy
    is imported in the driver; `resolve` imports it, in the rank. Paths are relative to the job
    file. `base` travels with the value.
    """

    base: str
    module: str
    attr: str

    def __new__(cls, text: str, base: str = ".") -> ImportRef:
        self = super().__new__(cls, text)
        self.base = base
        self.module, _, self.attr = text.partition(":")
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (ImportRef, (str(self), self.base))

    def spec(self) -> ModuleSpec:
        """The specification of the module, whose name is the same in all processes of a job. Raises
        `ValueError`."""
        if not self.module or not self.attr:
            what = f"{str(self)!r} is not an import string 'module:name' or 'file.py:name'"
            raise ValueError("; write ".join(filter(None, (what, " or ".join(written(self))))))
        folder = Path(self.base).resolve()
        if not self.module.endswith(".py"):
            if (spec := find_module(self.module)) is None:
                _on_path(folder, Path.cwd())
            if (spec := spec or find_module(self.module)) is None:
                raise ValueError(f"{str(self)!r} does not resolve: no module named {self.module!r}")
            own = folder / (file := f"{self.module.replace('.', '/')}.py")
            if own.is_file() and Path(spec.origin or "").resolve() != own.resolve():
                why = f"means {spec.origin}, which hides {own}; write {file}:{self.attr}"
                raise ValueError(f"{str(self)!r} {why}")
            return spec
        path = Path(os.path.abspath(folder / self.module))
        if not path.is_file():
            raise ValueError(f"{str(self)!r} does not resolve: there is no file {path}")
        _on_path(path.parent, path.resolve().parent, folder, Path.cwd())
        if Path(self.module).is_absolute():
            folder = Path(files.base or path.parent)
        files.base = files.base or str(folder)
        name = files.name_of(path, folder)
        return importlib.util.spec_from_file_location(name, path) or ModuleSpec(name, None)

    def check(self) -> None:
        """Raise `ValueError` unless the module exists and defines the name at its top level.

        Raises `SyntaxError` if the source is not valid Python.
        """
        if (tree := parsed(spec := self.spec())) is None:
            return
        names = top_level_names(tree)
        head = self.attr.partition(".")[0]
        if not {head, "*", "__getattr__"} & names:
            public = [name for name in names if not name.startswith("_")]
            raise ValueError(
                f"{str(self)!r} does not resolve: {Path(str(spec.origin)).name} has no {head!r}; "
                f"{nearest(head, public)}"
            )

    def resolve(self) -> Any:
        """Import the module and return the object. Raises the errors of the import."""
        return attrgetter(self.attr)(importlib.import_module(self.spec().name))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def build(text: str, info: ValidationInfo) -> ImportRef:
            base = (info.context or {}).get("base") or getattr(text, "base", ".")
            ref = cls(text, str(base))
            try:
                ref.check()
            except SyntaxError as error:
                raise ValueError(
                    f"{text!r} does not resolve: {error.filename}:{error.lineno}: {error.msg}"
                ) from error
            return ref

        from pydantic_core import core_schema  # slow to import, and the list of verbs lacks options

        shown = {"pattern": "^[^:]+:[^:]+$", "description": "module:name or file.py:name"}
        text = core_schema.str_schema(metadata={"pydantic_js_updates": shown})
        plain = core_schema.to_string_ser_schema()
        return core_schema.with_info_after_validator_function(build, text, serialization=plain)


def written(ref: ImportRef, *, flows: bool = False) -> list[str]:
    """Return the import strings of the functions and classes in the module of `ref`; if `flows`, of
    its flows only, else without them. Raises `ValueError` and `SyntaxError`."""
    tree = parsed(ImportRef(f"{ref.module}:…", ref.base).spec()) if ref.module else None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in (tree.body if tree else ()) if isinstance(node, kinds)]
    return [
        f"{ref.module}:{node.name}"
        for node in found
        if node.name[0] != "_"
        and flows == any(ast.unparse(each).endswith("flow") for each in node.decorator_list)
    ]
