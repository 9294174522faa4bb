"""A running command or interpreter: its pipes, its limits, and its end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rolemesh_sandbox_process.guard.output import Output
from rolemesh_sandbox_process.guard.spawn import HELPERS, start
from rolemesh_sandbox_process.guard.watch import descendants, folder_size, resident, unnamed

__all__ = ["End", "Job", "OwnerGoneError"]

_TICK_S = 0.025
"""Period of the checks of processes and memory, in seconds."""
_DISK_TICKS = 10
"""Number of these checks per check of the folder."""
_CHUNK = 1 << 16


class OwnerGoneError(Exception):
    """The process that asked has ended, or has closed the sandbox."""


class End(NamedTuple):
    """The end of a command: its exit status, and the limit that ended it. `error` says why it did not even start.
    `goes_on`: only a cell ended, and the interpreter waits for the next one.
    """

    code: int | None
    ended: str = ""
    error: str = ""
    goes_on: bool = False


class Job:
    """One command, from its start to the end of all its processes."""

    def __init__(
        self, setup: Mapping[str, Any], command: Sequence[str], owners: Sequence[int], files: Mapping[int, int]
    ) -> None:
        self.limits, self.folders = setup["limits"], [each for each in (setup["folder"], setup["tmp"]) if each]
        self.owners, self.over = owners, False
        self.output, writing = os.pipe()
        os.set_blocking(self.output, False)
        self.further: dict[int, Output] = {}
        """Further outputs by descriptor. Nobody follows their ends."""
        self.pid, self.status = start(setup, command, {1: writing, 2: writing, **files})
        os.close(writing)

    def follow(self, seconds: float, done: int | None = None, note: str = "") -> tuple[End, Output]:
        """Take the output until the command ends, a limit ends it, or `done` can be read. Only in the last case it goes
        on. `note` is the beginning of the output. Raises `OwnerGoneError`.
        """
        kept, until, ticks = Output(int(self.limits["output_kb"] * 1000)), time.monotonic() + seconds, 0
        kept.add(note.encode())
        poll = select.poll()
        for each in (self.output, *self.further, self.status, *self.owners, *(() if done is None else (done,))):
            poll.register(each, select.POLLIN | select.POLLRDHUP)
        due = time.monotonic() + _TICK_S
        while True:
            ready = {opened for opened, _ in poll.poll(max(0.0, min(due, until) - time.monotonic()) * 1000)}
            if ready.intersection(self.owners):
                self.end()
                raise OwnerGoneError
            for pipe, own in ((self.output, kept), *self.further.items()):
                if pipe in ready and not _take(pipe, own):
                    poll.unregister(pipe)
            end = self._ended(ready, done)
            if end is None and time.monotonic() >= until:
                end = End(None, "seconds")
            elif end is None and time.monotonic() >= due:
                due, ticks = time.monotonic() + _TICK_S, ticks + 1
                over = self._over(disk=ticks % _DISK_TICKS == 0)
                end = End(None, over) if over else None
            if end is not None:
                return self._settled(end, kept)
            if done in ready:  # closed, so it would be ready for ever
                poll.unregister(done)

    def pause(self, number: signal.Signals) -> None:
        """Stop all processes of the command, or let them continue."""
        for pid in descendants(self.pid):
            _signal(pid, number)

    def end(self) -> None:
        """Kill all processes of the command, also those that hide in sessions of their own, and wait for their end.

        The guard is the parent of all orphans. It stops processes before it kills them, so that none can fork away.
        """
        self.over = True
        mine, seen = os.getpid(), set[int]()
        for _ in range(100):
            found = set(descendants(mine))
            for pid in found - seen:
                _signal(pid, signal.SIGSTOP)
            if found <= seen:
                break
            seen |= found
        while True:
            for pid in descendants(mine):
                _signal(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.001)

    def close(self) -> None:
        """End the command, and close its descriptors."""
        self.end()
        for each in (self.output, *self.further, self.status):
            os.close(each)

    def _settled(self, end: End, kept: Output) -> tuple[End, Output]:
        over = "" if end.ended else self._too_large()
        if over or not end.goes_on:
            self.end()
        for pipe, own in ((self.output, kept), *self.further.items()):
            _take(pipe, own, everything=True)
        return (End(None, over) if over else end), kept

    def _ended(self, ready: set[int], done: int | None) -> End | None:
        if done is not None and done in ready and (told := os.read(done, 1)):
            return End(told[0], goes_on=True)
        return self._reported(os.read(self.status, 4096)) if self.status in ready else None

    def _reported(self, told: bytes) -> End:
        """Return the end of which the process above the command has told."""
        if told.startswith(b"!"):
            return End(None, error=told[1:].decode(errors="replace"))
        if told:
            return End(int(told)) if told.removeprefix(b"-").isdigit() else End(None, error=f"the status {told[:40]!r}")
        _, status = os.waitpid(self.pid, 0)  # the process above the command was killed
        return End(os.waitstatus_to_exitcode(status))

    def _over(self, *, disk: bool) -> str:
        """Return the limit that is exceeded now, or an empty text."""
        found = descendants(self.pid)
        if len(found) > self.limits["processes"] + HELPERS:
            return "processes"
        memory = int(self.limits["memory_mb"] * 1e6)
        if any(resident(pid) > memory for pid in found):
            return "memory_mb"
        if not disk:
            return ""
        on_disk, elsewhere = unnamed(found, self.folders)
        return "memory_mb" if elsewhere > memory else self._too_large(on_disk)

    def _too_large(self, more: int = 0) -> str:
        """Return the limit of the folder if it is exceeded, together with `more` bytes."""
        limit = int(self.limits["disk_mb"] * 1e6)
        return "disk_mb" if more + sum(folder_size(each, limit) for each in self.folders) > limit else ""


def _take(pipe: int, kept: Output, *, everything: bool = False) -> bool:
    """Read what is in the pipe. Return false at its end."""
    while True:
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return True
        kept.add(data)
        if not data or not everything:
            return bool(data)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
