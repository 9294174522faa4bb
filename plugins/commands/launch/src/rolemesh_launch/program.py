"""The script, run in this process as ``__main__``, with pauses.

It runs in a greenlet of the rank's main thread. So it may pause in the middle of a call and continue later, and
``torch`` and forks of worker processes see an ordinary main thread. Signals that come while it pauses wait for it, so
its handlers run in its own code only.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal, NoReturn, TypeAlias

from greenlet import getcurrent, greenlet

from rolemesh.errors import RolemeshError
from rolemesh_launch.process import as_python_ends, become_main, begin_import_path
from rolemesh_launch.signals import STOPPING, Held
from rolemesh_processes.signals import REPLACED, handle_unless_ignored, pass_over

__all__ = ["How", "Program", "ProgramExit", "trim"]

How: TypeAlias = Literal["path", "module", "executable"]

LEAVE = signal.SIGRTMAX - 7
"""Interrupts the main thread when another thread of the script calls ``os._exit(0)``."""
LEAVE_S = 5.0
"""Seconds that native code in the main thread may delay the interrupt; then the process exits."""
_NOT_THE_SCRIPT = (str(Path(__file__).parent), runpy.__file__, "<frozen runpy>")


class ProgramExit(RolemeshError):
    """The script ended with an exit code other than 0, or by a signal."""


class Program:
    """A script, which continues with `go` until it calls `pause` or ends."""

    def __init__(
        self, target: str, how: How, arguments: Sequence[str], *, before_end: Callable[[], object] = bool
    ) -> None:
        """`target` is a path, the name of a module, or an executable. `before_end` runs while the script could still
        import anything."""
        self._main: Callable[[], None] = {"path": self._path, "module": self._module, "executable": self._executable}[
            how
        ]
        self._target, self._how, self._arguments, self._before_end = target, how, list(arguments), before_end
        self._greenlet = greenlet(self._run)
        self._held = Held()
        self._pid, self._thread, self._code = os.getpid(), threading.get_ident(), 0
        self._leave_process = os._exit
        self._away = threading.Event()
        self.ending = False
        """True if the job stops."""
        self.ended = False
        self.dismissed = False
        """True if the job stopped after the script's end."""
        self._replaced = False
        """True if a recovery replaces this process. It ends with the script."""
        self.left = False
        """True if the script left with ``os._exit`` or ``exec``. None of its code runs any more, not even at exit."""

    def go(self) -> None:
        """Start or continue the script. Raises the errors of the script, and `ProgramExit`."""
        try:
            if not self.ended:
                self._greenlet.switch()
            if self.left:
                self._away.set()
                atexit._clear()
                _raise_for(self._code, "what it became by exec")
        finally:
            if self.ended:
                for number in STOPPING:
                    handle_unless_ignored(number, self._dismiss)
                self._end_if_replaced()

    def _dismiss(self, *_: object) -> None:
        self.dismissed = True

    def _replace(self, *_: object) -> None:
        self._replaced = True
        self._end_if_replaced()

    def _end_if_replaced(self) -> None:
        if self._replaced and self.ended and not self.forked:
            self._leave_process(0)

    @property
    def here(self) -> bool:
        """Return whether the caller is the script, in the thread that may `pause`."""
        return getcurrent() is self._greenlet and not self.ending and not self.forked

    @property
    def forked(self) -> bool:
        """Return whether this is a process that the script forked."""
        return os.getpid() != self._pid

    def pause(self) -> None:
        """Called by the script: stop here until the next `go`."""
        self._held.hold()
        self._greenlet.parent.switch()
        self._held.release()

    def end(self) -> None:
        """Let the script run to its end without further pauses, if it has begun."""
        self.ending = True
        if self._greenlet and not self.ended:
            self.go()

    def _run(self) -> None:
        self._stay()
        code, failure = self._result()
        if failure is None and not self.forked:
            self._before_end()
        if self._how != "executable":
            as_python_ends("" if failure is None else "".join(traceback.format_exception(failure)))
        if self.forked:  # a child that came to the script's end: the rank's connections are not its own
            os._exit(code)
        self.ended = True
        if failure is not None:
            raise failure

    def _result(self) -> tuple[int, BaseException | None]:
        """Run the script to its end. Return its exit code, and the exception that the rank raises for it."""
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
            error.__traceback__ = _of_script(error.__traceback__)
            if self.forked or sys.excepthook is not sys.__excepthook__:
                sys.excepthook(type(error), error, error.__traceback__)
            return 1, error
        return 0, None

    def _stay(self) -> None:
        """Keep this process alive when the script leaves it with exit code 0, because others of its group may still
        need it.

        ``os._exit(0)`` ends the script. ``os.exec*`` runs the new program beside this process, and ends the script with
        its exit code. Processes that the script forks, and other exit codes, really end.
        """
        leave, become = self._leave_process, os.execve

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
        signal.signal(REPLACED, self._replace)

    def _leave(self, code: int, leave: Callable[[int], NoReturn]) -> NoReturn:
        """End the script from any of its threads. None of them continues."""
        self._code, self.left, self.ended = code, True, True
        if threading.get_ident() == self._thread:
            self._greenlet.parent.switch()
        signal.pthread_kill(self._thread, LEAVE)
        if not self._away.wait(LEAVE_S):
            leave(code & 0xFF)
        while True:
            time.sleep(LEAVE_S)

    def _path(self) -> None:
        main, path = self._begin(self._target), os.path.join(os.getcwd(), self._target)
        if pkgutil.get_importer(path) is not None:  # a folder or an archive with a `__main__`
            sys.path.insert(0, path)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
            return
        begin_import_path(str(Path(path).resolve().parent))
        main.__dict__.update(__file__=path, __cached__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        # As CPython does it: an absolute path, and none of this file's own flags, such as its annotations.
        with open(path, "rb") as file:
            code = pkgutil.read_code(file)
            if code is None:  # it is not compiled
                file.seek(0)
                code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    def _module(self) -> None:
        self._begin("-m", self._target)
        begin_import_path(os.getcwd())
        runpy._run_module_as_main(self._target)  # type: ignore[attr-defined]

    def _begin(self, *command: str) -> ModuleType:
        """Set `sys.argv`, `sys.orig_argv` and ``__main__`` as ``python -u COMMAND ARGUMENTS`` has them."""
        sys.argv = [command[0], *self._arguments]
        sys.orig_argv = [sys.executable, "-u", *command, *self._arguments]
        main = ModuleType("__main__")
        become_main(main)
        main.__dict__.update(__builtins__=builtins, __annotations__={})
        return main

    def _executable(self) -> None:
        _raise_for(_ended([self._target, *self._arguments]), self._target)


def _ended(arguments: Sequence[str], env: Any = None, executable: str | None = None) -> int:
    """Run this program and return its exit code, negative if a signal ended it. Raises `OSError` if it cannot be
    run.

    The program gets the signals that stop the job, too. This process waits for what it makes of them.
    """
    with ExitStack() as after:
        for number in STOPPING:
            after.callback(signal.signal, number, signal.getsignal(number))
            pass_over(number)
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


def trim(error: BaseException) -> None:
    """Leave only the script's own part of the traceback of an error."""
    error.__traceback__ = None if isinstance(error, ProgramExit) else _of_script(error.__traceback__)


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins with the script, as if Python had been started with it."""
    begin = trace
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_NOT_THE_SCRIPT):
        begin = begin.tb_next
    return begin or trace
