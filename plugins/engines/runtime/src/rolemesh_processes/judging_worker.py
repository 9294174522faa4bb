"""The other side of `judging`: the zygote's loop, and that of the workers that it forks."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import resource
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.confinement import keep_files, limit_memory, seal
from rolemesh_processes.forking import Frames, alone, moved, send
from rolemesh_processes.judging_code import NO_NAMES, first_other_name, only_computes
from rolemesh_processes.semaphores import use_anonymous_memory

__all__ = [
    "DONE",
    "DROP",
    "FORK",
    "GAPS",
    "RAISED",
    "RAN_CODE",
    "REAP",
    "Judge",
    "Work",
    "decode",
    "judge_rows",
    "own_code",
    "serve_zygote",
]

Judge: TypeAlias = Callable[..., Any]
FORK, REAP, DROP = b"F", b"R", b"K"
"""Requests to the zygote: fork a worker with the socket that comes along, kill one and return its status, or kill one.
The last has no answer."""
DONE, RAISED, RAN_CODE, GAPS = b"D", b"E", b"C", b"G"
"""Messages of a worker: a result, the text of an exception, that the present judgement runs code, and, before all
others, what the kernel does not enforce."""
_LONGEST: Final = 1 << 31
_PREPARE_S: Final = 60
"""Seconds that the preparation of the zygote may take. Workers then prepare the rest themselves."""
_SHOWN: Final = 300
"""Number of characters of an exception that its reason has."""
_RUNS_CODE: Final = frozenset({"exec", "pickle.find_class", "ctypes.dlopen", "marshal.loads"})
"""Audit events of what can run code of an answer."""
_IMPORTS: Final = "_find_and_load"
_OWN_CODE: Final[set[Any]] = set()
"""Code objects that a judge has run for a text of its own."""
_LEARNS: Final[list[None]] = []
"""Not empty while it does that."""
_decoder = msgspec.msgpack.Decoder()


def decode(body: bytes) -> Any:
    """Return a result. Raises `ValueError` if it is none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no result: {error}") from None


def told(error: BaseException) -> str:
    """Return an exception in one line."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}".removesuffix(": ")[:_SHOWN]
    return type(error).__name__


@contextmanager
def own_code() -> Iterator[None]:
    """Let a judge judge a text of its own, such as the right answer. It may then run the same code for any text: its
    worker judges on.
    """
    _LEARNS.append(None)
    try:
        yield
    finally:
        _LEARNS.pop()


class Work(NamedTuple):
    """The work of workers. `memory`: bytes that each may take beyond those of the zygote. The others: see `Judges`."""

    judge: Judge
    memory: int
    sealed: bool
    prepare: Callable[[], None] | None = None
    names: re.Pattern[str] = NO_NAMES


def serve_zygote(own: socket.socket, owner: int, work: Work) -> None:
    """Fork workers, and kill them, until the owner ends or closes the socket."""
    if work.sealed:
        os.environ.clear()
        _serve_zygote(own, owner, work)
        return
    with tempfile.TemporaryDirectory(prefix="rolemesh-judges-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        _serve_zygote(own, owner, work)


def _serve_zygote(own: socket.socket, owner: int, work: Work) -> None:
    watch = _Watch(work.names)
    sys.addaudithook(watch)
    _prepare(work)
    own = alone(own, True)  # here, and not in each worker
    limit_memory(work.memory)
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(own, select.POLLIN)
    kept = [own.fileno()]
    with suppress(OSError):
        kept.append(os.pidfd_open(owner))
        poll.register(kept[-1], select.POLLIN)
    workers: set[int] = set()
    dropped: set[int] = set()
    while {opened for opened, _ in poll.poll()} == {own.fileno()}:
        request, files, _, _ = socket.recv_fds(own, 9, 1)
        if not request:
            break
        dropped = {pid for pid in dropped if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        pid = int.from_bytes(request[1:], "little")
        workers.discard(pid)
        if request[:1] == DROP:
            _kill(pid)
            dropped.add(pid)
            continue
        if request[:1] == FORK:
            answer = _forked(files[0], kept, work, watch)
            workers.add(answer)
        else:
            answer = _reaped(pid)
        with suppress(OSError):
            own.sendall(answer.to_bytes(8, "little"))
    for pid in workers:
        _reaped(pid)


def _prepare(work: Work) -> None:
    if work.prepare is None:
        return
    try:
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(_PREPARE_S)
        work.prepare()
    except Exception:
        pass  # a worker meets the same, and says so of its row
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _too_long(*_: object) -> None:
    raise TimeoutError


def _forked(opened: int, kept: Sequence[int], work: Work, watch: _Watch) -> int:
    """Fork a worker with the socket `opened`. It gets no descriptor in `kept`: those are the zygote's own."""
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        os.close(opened)
        return pid
    try:
        die_with_parent(zygote)
        os.setsid()
        judge_rows(moved(socket.socket(fileno=opened), kept), work, watch)
    finally:
        os._exit(0)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _reaped(pid: int) -> int:
    _kill(pid)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return signal.SIGKILL


class _Watch:
    """An audit hook: a worker says that its judgement runs code, and a process learns the code of its own texts."""

    number = -1
    """The worker's end of its socket."""
    armed = False

    def __init__(self, names: re.Pattern[str]) -> None:
        self._names = names

    def __call__(self, event: str, about: tuple[Any, ...]) -> None:
        if event not in _RUNS_CODE:
            return
        if _LEARNS:
            _OWN_CODE.update(about if event == "exec" else ())
        elif self.armed and not (event == "exec" and self._safe(about[0])) and not _importing():
            name = first_other_name(about[0], self._names) if event == "exec" else None
            if name is None:
                self.spend()
            else:
                sys.setprofile(partial(self._begins, about[0], name))

    def spend(self) -> None:
        """Say that the worker judges no other row: before code runs, so that nothing it does can take this back."""
        self.armed = False
        os.write(self.number, RAN_CODE + bytes(4))

    def _begins(self, code: CodeType, name: str, frame: FrameType, *_: object) -> None:
        """Look whether `code`, which begins now, will find what it first reads: if not, it ends with a `NameError`."""
        sys.setprofile(None)
        spaces = (frame.f_locals, frame.f_globals, frame.f_builtins)
        if frame.f_code is not code or any(type(space) is not dict or name in space for space in spaces):
            self.spend()

    def _safe(self, code: CodeType) -> bool:
        return code in _OWN_CODE or only_computes(code, self._names)


def judge_rows(own: socket.socket, work: Work, watch: _Watch) -> None:
    """Judge the rows that come over the socket, until its end. The process cannot do anything else from now on."""
    if work.sealed:
        gaps = seal()
    else:
        gaps = keep_files((os.environ["TMPDIR"], os.devnull))
        use_anonymous_memory()
    if gaps:
        send(own, GAPS, msgspec.msgpack.encode(gaps))
    asyncio.set_event_loop_policy(None)  # as in a new process: a loop that has ended before the fork hides the next one
    watch.number = own.fileno()
    most = _most_memory() + work.memory // 2
    frames = Frames(_LONGEST)
    while data := own.recv(1 << 20):
        for _, body in frames.feed(data):
            for arguments in pickle.loads(body):
                watch.armed = True
                try:
                    kind, found = DONE, msgspec.msgpack.encode(work.judge(*arguments))
                except BaseException as error:
                    kind, found = RAISED, msgspec.msgpack.encode(told(error))
                if watch.armed and work.sealed and _most_memory() > most:
                    watch.spend()  # caches may keep what a text has made, and leave too little for the next one
                watch.armed = False
                send(own, kind, found)


def _most_memory() -> int:
    """Return the most bytes of memory that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _importing() -> bool:
    """Whether a module is being imported: its code is not that of an answer."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == _IMPORTS and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
