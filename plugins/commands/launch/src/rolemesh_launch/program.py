"""The script: run in this process as ``__main__``, in pieces.

It lies in a greenlet of the rank's main thread, so it may be left in the middle of a call and gone on with later,
while signal handlers, ``torch`` and forks of worker processes find what they find anywhere in a main thread.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Literal, TypeAlias

from greenlet import getcurrent, greenlet

from rolemesh.errors import RolemeshError

__all__ = ["How", "Program", "ProgramExit", "of_script"]

How: TypeAlias = Literal["path", "module", "executable"]

_NOT_THE_SCRIPT = (str(Path(__file__).parent), runpy.__file__, "<frozen runpy>")


class ProgramExit(RolemeshError):
    """The script has ended with an exit code other than 0."""


class Program:
    """A script, which goes on with `go` until it calls `pause`, or ends."""

    def __init__(self, target: str, how: How, arguments: Sequence[str]) -> None:
        """`target` is a path, a module's name, or an executable."""
        self._main: Callable[[], None] = {"path": self._path, "module": self._module, "executable": self._executable}[
            how
        ]
        self._target, self._arguments = target, list(arguments)
        self._greenlet = greenlet(self._run)
        self._signal: signal.Signals | None = None
        self.ended = False

    def go(self) -> None:
        """Begin, or go on. Raises what the script raises, and `ProgramExit`."""
        self._greenlet.switch()

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self._signal is not None

    @property
    def here(self) -> bool:
        """Whether the caller is the script, in the thread that may `pause`."""
        return getcurrent() is self._greenlet and self._signal is None

    def pause(self) -> None:
        """Of the script: leave it here, until the next `go`."""
        self._greenlet.parent.switch()
        if self._signal is not None:
            os.kill(os.getpid(), self._signal)

    def end(self, number: signal.Signals) -> None:
        """Let the script get this signal where it was paused, and go on to its end without further pauses."""
        self._signal = number
        if self._greenlet and not self.ended:
            self.go()

    def _run(self) -> None:
        try:
            self._main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if end.code is not None and not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
            if code:
                raise ProgramExit(f"the script has ended with exit code {code}") from None
        finally:
            self.ended = True
            sys.stdout.flush()
            sys.stderr.flush()

    def _path(self) -> None:
        path = self._target
        sys.argv = [path, *self._arguments]
        sys.path.insert(0, str(Path(path).resolve().parent))
        main = ModuleType("__main__")
        main.__dict__.update(__file__=os.path.join(os.getcwd(), path), __cached__=None, __builtins__=__builtins__)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        sys.modules["__main__"] = main
        exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)

    def _module(self) -> None:
        sys.argv = [self._target, *self._arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(self._target, run_name="__main__", alter_sys=True)

    def _executable(self) -> None:
        process = subprocess.Popen([self._target, *self._arguments])
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code < 0:
            raise ProgramExit(f"{self._target} was killed by {signal.Signals(-code).name}")
        if code:
            raise ProgramExit(f"{self._target} has ended with exit code {code}")


def of_script(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the script: what would be seen if Python had been given it."""
    begin = trace
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_NOT_THE_SCRIPT):
        begin = begin.tb_next
    return begin or trace
