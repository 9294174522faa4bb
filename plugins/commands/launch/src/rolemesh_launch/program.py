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
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, NoReturn, TypeAlias

from greenlet import getcurrent, greenlet

from rolemesh.errors import RolemeshError
from rolemesh_launch.process import as_python_ends

__all__ = ["How", "Program", "ProgramExit", "of_script"]

How: TypeAlias = Literal["path", "module", "executable"]

LEAVE = signal.SIGRTMAX - 7
"""Interrupts the main thread when another thread of the script calls ``os._exit(0)``."""
LEAVE_S = 5.0
"""Seconds that a main thread in native code may take to be interrupted; then the process ends for good."""
_NOT_THE_SCRIPT = (str(Path(__file__).parent), runpy.__file__, "<frozen runpy>")


class ProgramExit(RolemeshError):
    """The script ended with an exit code other than 0, or by a signal."""


class Program:
    """A script, which goes on with `go` until it calls `pause`, or ends."""

    def __init__(self, target: str, how: How, arguments: Sequence[str]) -> None:
        """`target` is a path, a module's name, or an executable."""
        self._main: Callable[[], None] = {"path": self._path, "module": self._module, "executable": self._executable}[
            how
        ]
        self._target, self._how, self._arguments = target, how, list(arguments)
        self._greenlet = greenlet(self._run)
        self._signal: signal.Signals | None = None
        self._pid, self._thread, self._code = os.getpid(), threading.get_ident(), 0
        self._away = threading.Event()
        self.ended = False
        self.left = False
        """Whether the script left with ``os._exit`` or ``exec``: nothing of it runs any more, not even at exit."""

    def go(self) -> None:
        """Begin, or go on. Raises what the script raises, and `ProgramExit`."""
        if not self.ended:
            self._greenlet.switch()
        if self.left:
            self._away.set()
            _raise_for(self._code, "what it became by exec")

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self._signal is not None

    @property
    def here(self) -> bool:
        """Whether the caller is the script, in the thread that may `pause`."""
        return getcurrent() is self._greenlet and self._signal is None and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a process that the script forked."""
        return os.getpid() != self._pid

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
        self._stay()
        code, failure = self._result()
        if self._how != "executable":
            as_python_ends("" if failure is None else "".join(traceback.format_exception(failure)))
        if self.forked:  # a child that came to the script's end: the rank's connections are not its own
            os._exit(code)
        self.ended = True
        if failure is not None:
            raise failure

    def _result(self) -> tuple[int, BaseException | None]:
        """Run the script to its end; its exit code, and what the rank is to raise for it."""
        try:
            self._main()
        except SystemExit as end:
            code = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
            if end.code is not None and not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
            return code, ProgramExit(f"the script has ended with exit code {code}") if code else None
        except BaseException as error:
            if not isinstance(error, Exception | KeyboardInterrupt) and not self.forked:
                raise  # the rank is being stopped
            error.__traceback__ = of_script(error.__traceback__)
            if self.forked or sys.excepthook is not sys.__excepthook__:
                sys.excepthook(type(error), error, error.__traceback__)
            return 1, error
        return 0, None

    def _stay(self) -> None:
        """Keep this process when the script leaves it with exit code 0: others of its group may still need it.

        ``os._exit(0)`` ends the script, and ``os.exec*`` runs the program beside it and ends the script with its code.
        Processes that the script forks, and other exit codes, really end.
        """
        leave, become = os._exit, os.execve

        def stays() -> bool:
            ours = threading.get_ident() == self._thread and getcurrent() is self._greenlet.parent
            return not (self.forked or self.ended or ours)

        def _exit(status: int) -> NoReturn:
            if not stays() or not isinstance(status, int) or status & 0xFF:
                leave(status)
            self._leave(0, leave)

        def execve(path: Any, argv: Any, env: Any) -> NoReturn:
            if not stays() or isinstance(path, int):
                become(path, argv, env)
            found = os.fsdecode(path)
            self._leave(_ended(list(argv), env, found if "/" in found else f"./{found}"), leave)

        def execv(path: Any, argv: Any) -> NoReturn:
            execve(path, argv, os.environ)

        os._exit, os.execve, os.execv = _exit, execve, execv
        signal.signal(LEAVE, lambda *_: self._greenlet.parent.switch())

    def _leave(self, code: int, leave: Callable[[int], NoReturn]) -> NoReturn:
        """End the script from any of its threads: none of them continues."""
        self._code, self.left, self.ended = code, True, True
        if threading.get_ident() == self._thread:
            self._greenlet.parent.switch()
        signal.pthread_kill(self._thread, LEAVE)
        if not self._away.wait(LEAVE_S):
            leave(code & 0xFF)
        while True:
            time.sleep(LEAVE_S)

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
        sys.modules["__main__"] = main = ModuleType("__main__")
        main.__dict__.update(__builtins__=__builtins__)
        runpy._run_module_as_main(self._target)  # type: ignore[attr-defined]

    def _executable(self) -> None:
        _raise_for(_ended([self._target, *self._arguments]), self._target)


def _ended(arguments: Sequence[str], env: Any = None, executable: str | None = None) -> int:
    """The exit code of this program, negative if a signal ended it. Raises `OSError` if it cannot be run."""
    process = subprocess.Popen(arguments, executable=executable, env=env, close_fds=executable is None)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _raise_for(code: int, who: str) -> None:
    """Raise `ProgramExit` unless `code` is 0."""
    if code < 0:
        raise ProgramExit(f"{who} was killed by {signal.Signals(-code).name}")
    if code:
        raise ProgramExit(f"{who} has ended with exit code {code}")


def of_script(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the script: what would be seen if Python had been given it."""
    begin = trace
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_NOT_THE_SCRIPT):
        begin = begin.tb_next
    return begin or trace
