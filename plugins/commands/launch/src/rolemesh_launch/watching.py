"""The command while the script runs: show the output of ranks and their failures, and print the end."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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

__all__ = ["Printing", "finish", "say"]

POLL_S = 0.05


class Printing(NamedTuple):
    """The part of the ranks' output that is shown: without the streams of `redirects`, prefixed for those of `tee`, of
    these local ranks or of all."""

    tee: Std
    redirects: Std
    role: str
    per_node: int
    only: frozenset[int] | None

    def prefix(self, rank: int) -> str | None:
        """Return the prefix of this rank's lines; None: they are not shown."""
        local = rank % self.per_node
        if self.only is not None and local not in self.only:
            return None
        if self.tee.of(local):
            return f"[{self.role}{local}]:"
        return None if self.redirects.of(local) == 3 else ""


TOLD = ("failure", "recovery_planned", "recovered", "hang", "resized", "drained", "ladder_exhausted")
"""Kinds of events that are shown to the user."""


class _Console(threading.Thread):
    """Prints new text of the ranks' log files, and events of the ranks."""

    def __init__(self, run: LivingRun, printing: Printing) -> None:
        super().__init__(name="console", daemon=True)
        self._run, self._printing, self._over = run, printing, threading.Event()
        self._tails: dict[int, Tail] = {}
        self._events: Tail | None = None
        self._shown = Interleaving()

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            self._show(rest=False)
        self._show(rest=True)

    def close(self) -> None:
        """Print the rest."""
        self._over.set()
        self.join()

    def _show(self, *, rest: bool) -> None:
        for who, path in log_files(self._run, ROLE).items():
            rank = int(who.rpartition("/")[2])
            prefix = self._printing.prefix(rank)
            if prefix is None:
                continue
            if rank not in self._tails:
                self._tails[rank] = Tail(path)
            for piece in self._tails[rank].pieces(rest=rest):
                print(self._shown.add(who, prefix, piece), end="")
        if rest:
            print(self._shown.close(), end="")
        with suppress(OSError):
            sys.stdout.flush()
        with suppress(FileNotFoundError):
            self._events = self._events or Tail(self._run.path / EVENTS_FILE)
            for line in self._events.lines():
                event = msgspec.json.decode(line, type=Event)
                if event.kind in TOLD and (text := sentence(event)):
                    print(self._shown.close(), end="", flush=True)
                    say(text)


def say(text: str) -> None:
    """Print a line for the user, beside the script's output."""
    print(f"rolemesh: {text}", file=sys.stderr)


def finish(printing: Printing, note: Note, came: Sequence[int]) -> Callable[[JobRun, RunHandle], int]:
    """Return a function that waits for the end of a script, prints it, and returns the exit code. The run keeps `note`.

    `came`: the signals that the command has got. The first one stops the job, and the workers get it; see
    `rolemesh_launch.signals.caught`. Raises `JobFailedError`.
    """

    def wait(run: JobRun, handle: RunHandle) -> int:
        name = run.job.job.spec.name
        if run.detached:
            note.write(run.run_dir)
            handle.leave()
            say(f"job {name} is running; rolemesh attach {name}, rolemesh logs {name} -f, rolemesh stop {name}")
            return EXIT_DONE
        asked = threading.Event()

        def interrupted() -> None:
            asked.set()
            number = signal.Signals(came[0])
            say(f"stopping with {number.name} (Ctrl-C again to leave at once) …")
            threading.Thread(target=_stop, args=(run.run_dir, number), daemon=True).start()

        console = _Console(LivingRun(run.run_dir), printing)
        began = time.monotonic()
        try:
            try:
                note.write(run.run_dir)
                console.start()
                result = handle.wait(interrupted)
            except KeyboardInterrupt:
                if asked.is_set():
                    return EXIT_INTERRUPTED
                interrupted()
                result = handle.wait()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            console.close()
        if result is None:
            say(f"the job {name!r} died without a result; see {run.run_dir}")
            return EXIT_FAILED
        if result["status"] == "failed":
            raise job_failed(result)
        restarts = len(result.get("recoveries", ()))
        again = f", started again {restarts} times" if restarts else ""
        say(f"{name} {result['status']} after {time.monotonic() - began:.1f} s{again}; logs in {run.run_dir}/logs")
        return EXIT_INTERRUPTED if asked.is_set() and result["status"] != "done" else int(result["exit_code"])

    return wait


def _stop(run_dir: Path, number: signal.Signals) -> None:
    """Stop the job with this signal. A master may be about to restart."""
    with ControlClient(run_dir, ANSWER_S) as client:
        while LivingRun(run_dir).result() is None:
            try:
                client.ask(SignalJob(number, f"the command got {number.name}"))
                return
            except MasterGoneError:
                time.sleep(POLL_S)
