"""The other side of `judging`: the zygote's loop, and that of the workers that it forks."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.confinement import keep_files, limit_memory, seal
from rolemesh_processes.forking import Frames, alone, send

__all__ = [
    "DONE",
    "FORK",
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
FORK, REAP = b"F", b"R"
"""Requests to the zygote: fork a worker with the socket that comes along, or kill one and return its status."""
DONE, RAISED, RAN_CODE = b"D", b"E", b"C"
"""Messages of a worker: a result, the text of an exception, and that the present judgement runs code."""
_LONGEST: Final = 1 << 31
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
    """The work of workers. `memory`: bytes that each may take beyond those of the zygote. `sealed`: see `Judges`."""

    judge: Judge
    memory: int
    sealed: bool


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
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(own, select.POLLIN)
    with suppress(OSError):
        poll.register(os.pidfd_open(owner), select.POLLIN)
    workers: set[int] = set()
    while {opened for opened, _ in poll.poll()} == {own.fileno()}:
        request, files, _, _ = socket.recv_fds(own, 9, 1)
        if not request:
            break
        answer = 0
        if request[:1] == FORK:
            answer = _forked(files[0], work)
            workers.add(answer)
        else:
            workers.discard(pid := int.from_bytes(request[1:], "little"))
            answer = _reaped(pid)
        with suppress(OSError):
            own.sendall(answer.to_bytes(8, "little"))
    for pid in workers:
        _reaped(pid)


def _forked(opened: int, work: Work) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        os.close(opened)
        return pid
    try:
        die_with_parent(zygote)
        os.setsid()
        judge_rows(alone(socket.socket(fileno=opened), True), work)
    finally:
        os._exit(0)


def _reaped(pid: int) -> int:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return signal.SIGKILL


def judge_rows(own: socket.socket, work: Work) -> None:
    """Judge the rows that come over the socket, until its end. The process cannot do anything else from now on."""
    limit_memory(work.memory)
    if work.sealed:
        seal()
    else:
        keep_files((os.environ["TMPDIR"], os.devnull))
    number, armed = own.fileno(), False

    def watch(event: str, about: tuple[Any, ...]) -> None:
        nonlocal armed
        if event not in _RUNS_CODE or not armed or (event == "exec" and about[0] in _OWN_CODE):
            return
        if _LEARNS:
            _OWN_CODE.update(about if event == "exec" else ())
        elif not _importing():
            armed = False
            # Before the code runs, so that nothing it does can take this back.
            os.write(number, RAN_CODE + bytes(4))

    sys.addaudithook(watch)
    frames = Frames(_LONGEST)
    while data := own.recv(1 << 20):
        for _, body in frames.feed(data):
            for harmless, arguments in pickle.loads(body):
                armed = not harmless
                try:
                    kind, found = DONE, msgspec.msgpack.encode(work.judge(*arguments))
                except BaseException as error:
                    kind, found = RAISED, msgspec.msgpack.encode(told(error))
                armed = False
                send(own, kind, found)


def _importing() -> bool:
    """Whether a module is being imported: its code is not that of an answer."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == _IMPORTS and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
