"""Modules of files that an import statement may not reach, under names that every process finds.

``rolemesh.api.files.tools/roles`` is the file ``tools/roles.py`` in the job's folder. An object of
its classes can therefore be unpickled in a process that has not imported the file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

__path__: list[str] = []
"""Makes this module a package. Python asks `_Loader.find_spec` for the modules in it."""
base = ""
"""Folder of the job file."""


def name_of(path: Path, folder: Path) -> str:
    """Return the module name of a file, for a job file in `folder`: that of an import statement
    which finds it there, else its place in the folder. If this process has another module of that
    name, return the place on this machine."""
    names = [path.stem] if path.parent == folder else []
    if path.is_relative_to(folder):
        names.append(_quoted(path.relative_to(folder)))
    return next((name for name in names if _importable(name, path)), _quoted(path))


def _quoted(path: Path) -> str:
    return f"{__name__}.{str(path)[:-3].replace('%', '%25').replace('.', '%2E')}"


def _importable(name: str, path: Path) -> bool:
    """Return whether the import of this name gives this file."""
    try:
        plain = "." not in name.removeprefix(f"{__name__}.")
        found = importlib.util.find_spec(name) if plain else None
    except ValueError:  # a module that was made by hand has no spec
        return False
    return found is not None and os.path.realpath(found.origin or "") == os.path.realpath(path)


class _Loader(SourceFileLoader):
    """The import statement of a file beside it gets the same module, whichever comes first."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.startswith(f"{__name__}."):
            inside = unquote(name.removeprefix(f"{__name__}.")) + ".py"
            for file in (Path(folder, inside) for folder in (base, *sys.path)):
                if file.is_file():
                    return importlib.util.spec_from_file_location(
                        name, file, loader=cls(name, str(file))
                    )
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        path = Path(self.path)
        return sys.modules.get(path.stem) if _importable(path.stem, path) else None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != self.name:
            return
        plain = Path(self.path).stem
        if plain not in sys.modules and _importable(plain, Path(self.path)):
            sys.modules[plain] = module
        try:
            super().exec_module(module)
        except BaseException:
            if sys.modules.get(plain) is module:
                del sys.modules[plain]
            raise


sys.meta_path.append(_Loader)
