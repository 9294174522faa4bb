"""Write a class or function of ``__main__`` to a file that every process of a job can import."""

from __future__ import annotations

import base64
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from rolemesh.errors import OptionsError

__all__ = ["FOLDER", "cell"]

FOLDER = "rolemesh_cells"
"""Name of the folder for the files, below the job's base."""
MODULE = '''"""{name} of {module}, as rolemesh_notebook.cell found it. Made by a machine; needs Python {python}."""

from base64 import b64decode
from pickle import loads

{name} = loads(
    b64decode(
{lines}
    )
)
'''


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
    file = Path(FOLDER, f"{name.replace('.', '_')}_{hashlib.blake2b(data, digest_size=6).hexdigest()}.py")
    _write(Path(base, file), _module(code.__name__, module, data))
    return f"{file}:{code.__name__}"


def _module(name: str, module: str, data: bytes) -> str:
    lines = textwrap.wrap(base64.b64encode(data).decode(), 100)
    python = ".".join(map(str, sys.version_info[:2]))
    return MODULE.format(
        name=name, module=module, python=python, lines="\n".join(f"        {line!r}" for line in lines)
    )


def _write(path: Path, text: str) -> None:
    """Write the file completely or not at all, because a rank may be importing an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}.tmp")
    made.write_text(text)
    made.replace(path)
