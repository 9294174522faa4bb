"""Prepare a rank's process for the script, as if Python had been started for the script alone."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from rolemesh_processes.ending import awaited, end_program, flush_files
from rolemesh_processes.guard import MARKER

__all__ = ["after_import", "as_python_ends", "as_python_starts", "become_main", "begin_import_path"]

FAILED_END_S = 30.0
"""Maximum seconds for the end of a failed script; the same as torchrun's limit for its workers."""


def as_python_starts(folder: str | os.PathLike[str]) -> None:
    """Remove the traces of the rank that could disturb a script.

    `folder` is that of the job file. It and the working directory leave ``sys.path``, unless ``PYTHONPATH`` has them; a
    data folder ``datasets``, for example, must not hide the package of that name. rolemesh's handlers leave the root
    logger, because they would disable the script's ``logging.basicConfig``. Random generators get a new seed, because
    all ranks are forked from one process with the same state. SIGINT raises `KeyboardInterrupt`, and SIGTERM ends the
    process, unless the command ignores them. ``breakpoint()`` starts a debugger. Only Python's own finders look for the
    script's modules.
    """
    kept = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = {os.path.abspath(folder), os.getcwd()}
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) not in ours or path in kept]
    root = logging.getLogger()
    names = {name.partition(".")[0] for name in root.manager.loggerDict}
    for own in (logging.getLogger(name) for name in names if name.startswith("rolemesh")):
        own.handlers, own.propagate = list(root.handlers), False
        own.setLevel(root.level)
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if MARKER in os.environ:
        sys.meta_path[:] = [each for each in sys.meta_path if not each.__module__.startswith("rolemesh.")]
        signal.signal(signal.SIGTERM, signal.SIG_IGN if _ignores(os.getppid(), signal.SIGTERM) else signal.SIG_DFL)
    sys.breakpointhook = sys.__breakpointhook__
    random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def begin_import_path(folder: str) -> None:
    """Put the folder of the script first on ``sys.path``, and forget preloaded modules that its own ones hide.

    The modules that Python itself imports when it starts stay, as in every program.
    """
    sys.path.insert(0, folder)
    names = {name.partition(".")[0] for name in sys.modules}.difference(("__main__", *sys.builtin_module_names))
    found = {name: PathFinder.find_spec(name, [folder]) for name in names}
    now = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    own = {name for name, spec in found.items() if spec and spec.loader and spec.origin != now[name]}
    if own and MARKER in os.environ:
        tell = [sys.executable, "-c", "import sys; print(*sys.modules)"]
        own -= set(subprocess.run(tell, capture_output=True, text=True, check=True).stdout.split())
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]


class _SpawnedMain(ModuleType):
    """The main module under the name that it has in spawned processes of `multiprocessing`, which send back objects of
    its classes. It keeps no object of the script alive."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["__main__"], name)


def become_main(module: ModuleType) -> None:
    """Make `module` the main module."""
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before
        sys.modules["__mp_main__"] = _SpawnedMain("__mp_main__")


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Return whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) & 1 << number - 1)


def after_import(name: str, do: Callable[[ModuleType], object]) -> None:
    """Call ``do(module)`` after the import of the module `name`: now, or whenever it is imported."""
    if name in sys.modules:
        do(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, do))


class _Finder(MetaPathFinder):
    """Finds one module with the other finders, and calls back after its import."""

    def __init__(self, name: str, do: Callable[[ModuleType], object]) -> None:
        self._name, self._do = name, do

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._do(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def as_python_ends(failed: str = "") -> None:
    """Do what the interpreter does at the end of a program, in the same order; see `rolemesh_processes.ending`.

    Modules stay until the process ends, because it may have to wait for other ranks. The time is unlimited, except
    after an error, whose text is `failed`, because other ranks may wait for this one.
    """
    ended = threading.Event()
    if failed:
        threading.Thread(target=_give_up, args=(ended, failed), name="end", daemon=True).start()
    try:
        end_program()
        sys.modules["__main__"] = ModuleType("__main__")
        gc.collect()
        flush_files()
    finally:
        ended.set()


def _give_up(ended: threading.Event, failed: str) -> None:
    if not ended.wait(FAILED_END_S):
        text = f"{failed}rolemesh: {awaited()} has not ended within {FAILED_END_S:g} s, so the process is ended"
        print(text, file=sys.stderr, flush=True)
        os._exit(1)
