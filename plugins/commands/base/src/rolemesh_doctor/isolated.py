"""Run functions in processes of their own, all at once and each with a time limit, so that one that hangs or dies harms
no other."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE

__all__ = ["Failed", "Task", "run"]


class Task(NamedTuple):
    """A function whose result, of type `kind`, msgspec can encode, and its time limit in seconds."""

    do: Callable[[], Any]
    kind: Any
    limit_s: float = 5.0


class Failed(NamedTuple):
    """The reason why there is no result."""

    why: str


def run(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Return the result of each task, or `Failed`. The output of tasks is dropped.

    If the system refuses to start processes, tasks run in this one, one after the other and without limits.
    """
    results: dict[str, Any] = {}
    ends: dict[int, str] = {}
    pids: dict[str, int] = {}
    data: dict[str, bytes] = {}
    started = time.monotonic()
    try:
        for name, task in tasks.items():
            try:
                end, pids[name] = _start(task)
            except OSError:
                results[name] = _decoded(_done(task), task)
                continue
            ends[end], data[name] = name, b""
        while ends:
            now = time.monotonic() - started
            for end, name in list(ends.items()):
                if now >= tasks[name].limit_s:
                    results[name] = Failed(f"it took longer than {tasks[name].limit_s:g} s")
                    os.close(end)
                    del ends[end]
            left = min((tasks[name].limit_s for name in ends.values()), default=now) - now
            for end in select.select(list(ends), [], [], max(0.0, left))[0]:
                name = ends[end]
                if part := os.read(end, 1 << 16):
                    data[name] += part
                    continue
                results[name] = _decoded(data[name], tasks[name])
                os.close(end)
                del ends[end]
    finally:
        for end in ends:
            os.close(end)
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # one that waits for a disk ends when the disk answers
    return {name: results[name] for name in tasks}


def _start(task: Task) -> tuple[int, int]:
    """Start `task`. Return the descriptor of its result, and the pid of its process. Raises `OSError`."""
    read, write = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if pid:
        os.close(write)
        return read, pid
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        sys.stdout = sys.stderr = open(nowhere, "w")  # noqa: SIM115 - this process ends without closing it
        answer = _done(task)
        while answer:
            answer = answer[os.write(write, answer) :]
    finally:
        os._exit(0)


def _done(task: Task) -> bytes:
    """Return the encoded result, after a byte that says whether there is one."""
    try:
        return b"+" + msgspec.json.encode(task.do())
    except BaseException as error:
        return b"-" + msgspec.json.encode(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _decoded(data: bytes, task: Task) -> Any:
    if not data:
        return Failed("its process died")
    try:
        if data.startswith(b"-"):
            return Failed(msgspec.json.decode(data[1:], type=str))
        return msgspec.json.decode(data[1:], type=task.kind)
    except UNDECODABLE as error:
        return Failed(f"its process died in the middle of its answer: {error}")
