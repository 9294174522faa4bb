"""The end of a forked Python process: what the interpreter does then, without the parts that only its parent needs.

A real end of the interpreter releases all modules, including those that the parent imported: 0.3 s of processor time
and a copy of their memory in each process. Here it takes a few milliseconds. Both do the same for a program: threads
that are not daemons end, exit handlers run, objects are released, files are flushed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import signal
import sys
import threading
import weakref
from collections.abc import Collection
from contextlib import suppress
from types import FrameType

__all__ = ["PATIENCE_S", "awaited", "disown_finalizers", "end_program", "flush_files", "release_modules"]

PATIENCE_S = 5.0
"""Seconds for threads and exit handlers after which stderr says which of them the end waits for."""


def disown_finalizers() -> None:
    """In a forked process: leave the parent's objects (its temporary folders, for instance) to the parent.

    Exit handlers stay, because a program may import a module that its parent imported, and expects that module's
    handlers.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def end_program() -> None:
    """Wait for threads that are not daemons, then run the exit handlers. That may take any time."""
    late = threading.Timer(PATIENCE_S, _tell)
    late.daemon = True
    late.start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        late.cancel()


def flush_files() -> None:
    """Flush the buffers of files and of C's streams; without an error if that fails."""
    for file in [found for found in gc.get_objects() if issubclass(type(found), io.IOBase)]:
        with suppress(Exception):  # it is closed, cannot be written to, or its disk is full
            file.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def release_modules(kept: Collection[str]) -> None:
    """Release the modules other than those `kept`, and what they refer to, starting with objects that nothing else
    refers to.

    Another name of a kept module is only removed: multiprocessing gives ``__main__`` the second name ``__mp_main__``.
    Signals get their default actions before, as in CPython's `_PySignal_Fini`: a handler that ran later would find
    ``None`` in place of its module's names. SIGTERM is ignored instead: this process is about to end, and an object may
    use the time that its agent gives it. Daemon threads, which CPython stops, end with that error, in silence.
    """
    flush_files()
    threading.excepthook = lambda _: None
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
    known = {id(sys.modules[name]) for name in kept if name in sys.modules}
    popped = [sys.modules.pop(name) for name in reversed(list(sys.modules)) if name not in kept]
    modules = [module for module in popped if id(module) not in known]
    popped.clear()
    spaces = [vars(module) for module in modules if hasattr(module, "__dict__")]
    modules.clear()
    gc.collect()
    for space in spaces:
        for name in [name for name in reversed(space) if name != "__builtins__"]:
            space[name] = None


def awaited() -> str:
    """Return what the end of this process waits for: threads that are not daemons, or the code of its main thread."""
    main = threading.main_thread()
    threads = [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
    if threads:
        return f"thread {', '.join(threads)}"
    frame: FrameType | None = sys._current_frames().get(main.ident or 0)
    return "an exit handler" if frame is None else f"an exit handler ({frame.f_code.co_filename}:{frame.f_lineno})"


def _tell() -> None:
    print(f"rolemesh: the process ends when {awaited()} has ended", file=sys.stderr, flush=True)
