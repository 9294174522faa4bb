"""Write a class or function of ``__main__`` to a file that every process of a job can import."""

from __future__ import annotations

import base64
import hashlib
import inspect
import io
import os
import pickle
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from rolemesh.errors import OptionsError

__all__ = ["FOLDER", "cell", "unpickled"]

FOLDER = "rolemesh_cells"
"""Name of the folder for the files, below the job's base."""
MODULE = '''"""{name} of {module}, as rolemesh_notebook.cell found it. Made by a machine; needs Python {python}."""

from rolemesh_notebook.cells import unpickled

{name} = unpickled(
    __name__,
{lines}
)
'''
TRACKED = ("_make_skeleton_class", "_make_skeleton_enum")
"""Functions by which cloudpickle makes classes. The argument before their last one is the class's id."""
MAKERS = (*TRACKED, "_make_function")
_classes: dict[str, Any] = {}
"""The classes that this process has unpickled, by cloudpickle's id of the class in the notebook."""


def cell(code: type[Any] | Callable[..., Any], base: str | Path = ".") -> str:
    """Return the import string of a class or function, for `Job.role(use=…)` or an option that names code.

    Code of ``__main__`` (a notebook, a Python prompt, a script) is written by value to ``rolemesh_cells/NAME_HASH.py``
    below `base`, which is the job's `base`. The file includes the helpers, globals and base classes of ``__main__``
    that the code uses. Each version of a cell has its own file, so a running job keeps its version. For code of an
    importable module, the result is ``module:name`` and nothing is written.

    Raises `OptionsError` for an object without a name, or one that uses something that cannot be pickled, such as an
    open file.
    """
    name, module = getattr(code, "__qualname__", ""), getattr(code, "__module__", "")
    where, known = f"cell({name or code!r})", inspect.isclass(code) or inspect.isroutine(code)
    if not known or not all(part.isidentifier() for part in name.split(".")):
        remedy = "give a class, or a function made with def, that stands at the top of a cell"
        raise OptionsError(f"{code!r} is no class and no function with a name", where=where, remedy=remedy)
    if module != "__main__":
        return f"{module}:{name}"
    try:
        data = cloudpickle.dumps(code)
    except Exception as error:
        remedy = "open files, connections and locks in setup(), not at the top of a cell"
        what = f"{name} uses something that cannot be pickled: {type(error).__name__}: {error}"
        raise OptionsError(what, where=where, remedy=remedy) from error
    _classes.clear()  # what the notebook runs next are copies of its classes as they are now
    file = Path(FOLDER, f"{name.replace('.', '_')}_{hashlib.blake2b(data, digest_size=6).hexdigest()}.py")
    _write(Path(base, file), _module(code.__name__, module, data))
    return f"{file}:{code.__name__}"


def _module(name: str, module: str, data: bytes) -> str:
    lines = textwrap.wrap(base64.b64encode(data).decode(), 100)
    python = ".".join(map(str, sys.version_info[:2]))
    return MODULE.format(name=name, module=module, python=python, lines="\n".join(f"    {line!r}" for line in lines))


def unpickled(module: str, data: str) -> Any:
    """Return the class or function in a file that `cell` wrote. `module` is the file's module, `data` is in base64.

    The classes of the notebook that it uses are copies: those that the notebook has stay as they are. They belong to
    the module, so that any rank can unpickle their objects. Files with the same class share one copy.
    """
    unpickler = _Unpickler(base64.b64decode(data))
    found = unpickler.load()
    for made in unpickler.made:
        if made.__module__ == "__main__":
            made.__module__ = module
            if "." not in made.__qualname__:
                setattr(sys.modules[module], made.__qualname__, made)
    return found


class _Unpickler(pickle.Unpickler):
    """Makes new classes. By itself, cloudpickle changes the class in the process that pickled it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.made: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return partial(self._make, found) if module == cloudpickle.cloudpickle.__name__ and name in MAKERS else found

    def _make(self, maker: Callable[..., Any], *args: Any) -> Any:
        tracked = maker.__name__ in TRACKED
        made = _classes.get(args[-2]) if tracked else None
        if made is None:
            made = maker(*args[:-2], None, args[-1]) if tracked else maker(*args)
        if tracked:
            _classes[args[-2]] = made
        self.made.append(made)
        return made


def _write(path: Path, text: str) -> None:
    """Write the file completely or not at all, because a rank may be importing an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}.tmp")
    made.write_text(text)
    made.replace(path)
