"""The command while the script runs: show the output of ranks and their failures, and print the end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from rolemesh.api.failures import job_failed
from rolemesh.api.observer import Event
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rolemesh.job.engine import RunHandle
from rolemesh.job.run import JobRun
from rolemesh.runs.run import EVENTS_FILE
from rolemesh_console.sentences import sentence
from rolemesh_durable.api.jobs import ANSWER_S, ControlClient, LivingRun, MasterGoneError, SignalJob
from rolemesh_jobs.interleaving import Interleaving
from rolemesh_jobs.logs import Tail, log_files
from rolemesh_launch.flags import Std
from rolemesh_launch.job import ROLE
from rolemesh_launch.resuming import Note
from rolemesh_processes.output import ERRORS

__all__ = ["Printing", "finish", "say", "stop"]

POLL_S = 0.05


class Printing(NamedTuple):
    """The part of the ranks' output that is shown: without the streams of `redirects`, prefixed for those of `tee`, of
    these local ranks or of all. Stream 1 is stdout, 2 is stderr."""

    tee: Std
    redirects: Std
    role: str
    per_node: int
    only: frozenset[int] | None

    def prefix(self, rank: int, stream: int) -> str | None:
        """Return the prefix of the lines of this rank's stream; None: they are not shown."""
        local = rank % self.per_node
        if self.only is not None and local not in self.only:
            return None
        if self.tee.of(local) & stream:
            return f"[{self.role}{local}]:"
        return None if self.redirects.of(local) & stream else ""


TOLD = ("failure", "recovery_planned", "recovered", "hang", "resized", "drained", "ladder_exhausted")
"""Kinds of events that are shown to the user."""


class _Stream:
    """One of the ranks' output streams, on the same stream of this process, byte for byte."""

    def __init__(self, number: int, suffix: str, file: TextIO) -> None:
        """`suffix` is the end of the names of its logs."""
        self._number, self._suffix, self._file = number, suffix, file
        self._tails: dict[str, Tail] = {}
        self._shown = Interleaving()
        self._closed = False

    def show(self, run: LivingRun, printing: Printing, *, rest: bool) -> None:
        """Print what is new."""
        for who, path in log_files(run, ROLE, self._suffix).items():
            prefix = printing.prefix(int(who.rpartition("/")[2]), self._number)
            if prefix is None:
                continue
            if who not in self._tails:
                self._tails[who] = Tail(path, run_dir=run.path, exact=True)
            for piece in self._tails[who].pieces(rest=rest):
                self._put(self._shown.add(who, prefix, piece))

    def end_line(self) -> None:
        """End an unfinished line, because something else follows."""
        self._put(self._shown.close())

    def _put(self, text: str) -> None:
        if self._closed or not text:
            return
        try:
            self._file.buffer.write(text.encode(errors="surrogateescape"))
            self._file.buffer.flush()
        except BrokenPipeError:  # nobody reads it any more: the script goes on, and its logs are whole
            self._closed = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._file.fileno())


class _Console(threading.Thread):
    """Prints new output of the ranks, and their events."""

    def __init__(self, run: LivingRun, printing: Printing) -> None:
        super().__init__(name="console", daemon=True)
        self._run, self._printing, self._over = run, printing, threading.Event()
        self._streams = _Stream(1, ".log", sys.stdout), _Stream(2, ERRORS, sys.stderr)
        self._events: Tail | None = None

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            self._show(rest=False)
        self._show(rest=True)

    def close(self) -> None:
        """Print the rest."""
        self._over.set()
        self.join()

    def _show(self, *, rest: bool) -> None:
        for stream in self._streams:
            stream.show(self._run, self._printing, rest=rest)
        with suppress(FileNotFoundError):
            self._events = self._events or Tail(self._run.path / EVENTS_FILE)
            for line in self._events.lines():
                event = msgspec.json.decode(line, type=Event)
                if event.kind in TOLD and (text := sentence(event)):
                    for stream in self._streams if sys.stdout.isatty() else self._streams[1:]:
                        stream.end_line()
                    say(text)


def say(text: str) -> None:
    """Print a line for the user, beside the script's output."""
    print(f"rolemesh: {text}", file=sys.stderr)


def finish(printing: Printing, note: Note) -> Callable[[JobRun, RunHandle], int]:
    """Return a function that waits for the end of a script, prints it, and returns the exit code. The run keeps `note`.

    After a `KeyboardInterrupt`, which `stop` follows, it waits for the job's end; it ends at the next one. Raises
    `JobFailedError`.
    """

    def wait(run: JobRun, handle: RunHandle) -> int:
        name = run.job.job.spec.name
        if run.detached:
            note.write(run.run_dir)
            handle.leave()
            say(f"job {name} is running; rolemesh attach {name}, rolemesh logs {name} -f, rolemesh stop {name}")
            return EXIT_DONE
        asked = threading.Event()
        console = _Console(LivingRun(run.run_dir), printing)
        began = time.monotonic()
        try:
            try:
                note.write(run.run_dir)
                console.start()
                result = handle.wait(asked.set)
            except KeyboardInterrupt:
                if asked.is_set():
                    return EXIT_INTERRUPTED
                asked.set()
                result = handle.wait()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            console.close()
        if result is None:
            say(f"the job {name!r} died without a result; see {run.run_dir}")
            return EXIT_FAILED
        if result["status"] == "failed":
            failed = job_failed(result)
            if failed.remedy is not None and failed.remedy.endswith(".log"):
                failed.remedy += f" and {failed.remedy.rpartition('/')[2].removesuffix('.log')}{ERRORS} beside it"
            raise failed
        restarts = len(result.get("recoveries", ()))
        again = f", started again {restarts} times" if restarts else ""
        say(f"{name} {result['status']} after {time.monotonic() - began:.1f} s{again}; logs in {run.run_dir}/logs")
        return EXIT_INTERRUPTED if asked.is_set() and result["status"] != "done" else int(result["exit_code"])

    return wait


def stop(run_dir: Path, number: signal.Signals) -> None:
    """Stop the job with this signal. A master may be about to start, or to restart."""
    say(f"stopping with {number.name} (Ctrl-C again to leave at once) …")
    with ControlClient(run_dir, ANSWER_S) as client:
        while LivingRun(run_dir).result() is None:
            try:
                client.ask(SignalJob(number, f"the command got {number.name}"))
                return
            except MasterGoneError:
                time.sleep(POLL_S)
