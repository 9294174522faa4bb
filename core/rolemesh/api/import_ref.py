"""Import strings: ``package.module:attr`` or ``path/file.py:attr``, checked without importing, resolved on demand."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from rolemesh.errors import nearest

__all__ = ["ImportRef", "import_paths"]


def import_paths(base: str | Path) -> None:
    """Put the job file's folder and the working directory in front of ``sys.path`` (once)."""
    for path in (str(Path.cwd()), str(Path(base).resolve())):
        if path not in sys.path:
            sys.path.insert(0, path)


class ImportRef(str):
    """A pydantic type for options that name code, e.g. a loss function.

    Validation finds the module and the top-level name by reading the source, so that nothing heavy is imported in
    the driver; `resolve` imports it, in the rank. Paths are relative to the job file. `base` travels with the value.
    """

    base: str

    def __new__(cls, text: str, base: str = ".") -> ImportRef:
        self = super().__new__(cls, text)
        self.base = base
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (ImportRef, (str(self), self.base))

    @property
    def module(self) -> str:
        return self.partition(":")[0]

    @property
    def attr(self) -> str:
        return self.partition(":")[2]

    def source(self) -> Path | None:
        """The file that defines the module, or None for one without Python source. Raises `ValueError`."""
        if not self.module or not self.attr:
            raise ValueError(f"{str(self)!r} is not an import string 'module:name' or 'file.py:name'")
        if self.module.endswith(".py"):
            path = Path(self.base, self.module)
            if not path.is_file():
                raise ValueError(f"{str(self)!r} does not resolve: there is no file {path}")
            return path
        import_paths(self.base)
        try:
            spec = importlib.util.find_spec(self.module)
        except ModuleNotFoundError as error:
            raise ValueError(f"{str(self)!r} does not resolve: no module named {error.name!r}") from error
        if spec is None:
            raise ValueError(f"{str(self)!r} does not resolve: no module named {self.module!r}")
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None

    def check(self) -> None:
        """Raise `ValueError` unless the module exists and defines the name at its top level.

        Raises `SyntaxError` where the source is no Python.
        """
        source = self.source()
        if source is None:
            return
        names = _top_level_names(source)
        head = self.attr.partition(".")[0]
        if head not in names and "*" not in names and "__getattr__" not in names:
            public = [name for name in names if not name.startswith("_")]
            raise ValueError(f"{str(self)!r} does not resolve: {source.name} has no {head!r}; {nearest(head, public)}")

    def resolve(self) -> Any:
        """Import the module and return the object. Raises what the import raises."""
        self.source()
        target: Any = self._import()
        for name in self.attr.split("."):
            target = getattr(target, name)
        return target

    def _import(self) -> ModuleType:
        if not self.module.endswith(".py"):
            return importlib.import_module(self.module)
        path = Path(self.base, self.module).resolve()
        import_paths(path.parent)
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            return loaded
        name = path.stem if loaded is None and path.stem.isidentifier() else f"_rolemesh_file_{abs(hash(str(path)))}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def build(text: str, info: ValidationInfo) -> ImportRef:
            base = (info.context or {}).get("base") or getattr(text, "base", ".")
            ref = cls(text, str(base))
            try:
                ref.check()
            except SyntaxError as error:
                raise ValueError(f"{text!r} does not resolve: {error.filename}:{error.lineno}: {error.msg}") from error
            return ref

        return core_schema.with_info_after_validator_function(
            build, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[^:]+:[^:]+$", "description": "module:name or file.py:name"}


def _top_level_names(path: Path) -> set[str]:
    names: set[str] = set()
    body: list[ast.stmt] = list(ast.parse(path.read_text(), filename=str(path)).body)
    while body:
        node = body.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.Assign(targets=targets):
                names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.If() | ast.Try():
                body += [*node.body, *node.orelse, *getattr(node, "finalbody", [])]
                body += [s for h in getattr(node, "handlers", []) for s in h.body]
            case _:
                pass
    return names
