"""Observers that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar, Literal

from rolemesh import Observer, hookimpl
from rolemesh.api.observer import Event, JobStatus, RunInfo, StepMetrics
from rolemesh_testing.observers.lives import EVENTS

__all__ = ["BROKEN"]


class Sound(Observer):
    """Counts steps, and writes how many there were."""

    run: RunInfo | None = None

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        self.run, self.steps = run, 0

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        if self.run is not None:
            self.steps += len(metrics)
            with Path(self.run.run_dir, "steps.txt").open("a") as file:
                file.write(f"{self.steps}\n")

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        self.run = None


class Unmarked(Observer):
    """Forgets the mark."""

    def job_started(self, run: RunInfo) -> None:
        pass


class Beside(Sound):
    """Is on a side of its own."""

    side: ClassVar[Literal["master", "driver"]] = "beside"  # type: ignore[assignment]


class KnowsTwoEnds(Sound):
    """Knows jobs that are done or that failed."""

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        {"done": super().job_ended, "failed": super().job_ended}[result["status"]](result)


class KnowsAllKinds(Sound):
    """Knows the kinds of events of today."""

    @hookimpl
    def event(self, event: Event) -> None:
        if event.kind not in list(EVENTS)[:-1]:
            raise ValueError(event.kind)


class Rounds(Sound):
    """Takes every value for a number."""

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        for line in metrics:
            for value in line.values.values():
                round(value)


class Divides(Sound):
    """Divides by the number of steps."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        super().job_started(run)
        self.share = 1 / run.steps


class ReadsTheOrigin(Sound):
    """Needs what a resumed job was resumed from."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        super().job_started(run)
        if run.origin:
            os.listdir(run.origin)


class WantsAFreshFolder(Sound):
    """Makes its file, which must not be there."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        Path(run.run_dir, "mine.txt").open("x").close()


class NeedsSteps(Sound):
    """Assumes that a job that ends has finished a step."""

    seen: int

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        self.seen = metrics[-1].step

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        assert self.seen >= 0


class WatchesOnce(Sound):
    """Keeps the first job that it sees."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        if self.run is None:
            super().job_started(run)

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        pass


class Shared(Sound):
    """Keeps the job in the class."""

    steps = 0

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        type(self).run = run

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        type(self).run = None


class ThreadPerStatus(Sound):
    """Passes every status on in a thread of its own."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        self.ended = threading.Event()

    @hookimpl
    def status(self, status: JobStatus) -> None:
        threading.Thread(target=self.ended.wait, daemon=True).start()

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        if hasattr(self, "ended"):
            self.ended.set()


class FilePerStatus(Sound):
    """Opens a file for every status."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        self.files: list[int] = []

    @hookimpl
    def status(self, status: JobStatus) -> None:
        if hasattr(self, "files"):
            self.files.append(os.open(os.devnull, os.O_RDONLY))

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        for file in self.__dict__.pop("files", ()):
            os.close(file)


class Scribbles(Sound):
    """Writes into the result."""

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        result["seen"] = True


def alone() -> bool:
    """Whether this is the process that the kit has started for the observer: only there it does harm."""
    return Path.cwd().name == "work"


class WritesHere(Sound):
    """Writes into the working folder."""

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        if alone():
            Path("summary.txt").write_text("done")


class LeavesAThread(Sound):
    """Leaves a thread behind."""

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        if alone():
            threading.Timer(30.0, print).start()


class LeavesAProcess(Sound):
    """Leaves a process behind."""

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        if alone():
            subprocess.Popen(["sleep", "5"])


class NeedsItsFolder(Sound):
    """Ends the process at once where its folder is gone, or is none."""

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        try:
            super().steps_finished(metrics)
        except (FileNotFoundError, NotADirectoryError):
            os._exit(3)


class NeedsTheDisk(Sound):
    """Ends the process at once where the disk is full."""

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        try:
            super().steps_finished(metrics)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            os._exit(3)


class Interrupts(Sound):
    """Takes what it cannot write for somebody's Ctrl-C."""

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        try:
            super().steps_finished(metrics)
        except OSError:
            raise KeyboardInterrupt from None


ANY_ORDER = "test_hooks_in_any_order_are_taken"
ANY_METRICS = "test_metrics_of_any_kind_are_taken"
RESTART = "test_it_goes_on_after_the_masters_restart"
FOLDERS = (
    "test_a_folder_that_vanishes_does_not_end_the_process",
    "test_a_file_in_place_of_the_folder_does_not_end_the_process",
)
FULL = "test_a_full_disk_does_not_end_the_process"
ELSEWHERE = {"test_it_writes_in_the_runs_folder_only", "test_it_leaves_nothing_running", *FOLDERS, FULL}
"""Tests that start a process."""


class BeginsAgain(Sound):
    """Opens its file for writing when a master starts, so the lines of the master before are gone."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        super().job_started(run)
        Path(run.run_dir, "steps.txt").write_text("")


class FilePerMetric(Sound):
    """Names a file after each metric, whatever its name."""

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        for line in metrics if self.run is not None else ():
            for name, value in line.values.items():
                path = Path(self.run.run_dir, f"{name[:99]}.txt")  # type: ignore[union-attr]
                if path.parent.exists():
                    with path.open("a") as file:
                        file.write(f"{value}\n")


BROKEN: dict[type[Observer], set[str]] = {
    Unmarked: {"test_it_has_hooks_of_an_observer"},
    Beside: {"test_it_is_on_one_side"},
    KnowsTwoEnds: {"test_a_whole_life_is_watched"},
    KnowsAllKinds: {"test_every_kind_of_event_is_taken", RESTART, ANY_ORDER},
    Rounds: {ANY_METRICS},
    Divides: {"test_a_job_without_steps_is_watched", ANY_METRICS},
    ReadsTheOrigin: {"test_a_resumed_job_is_watched"},
    WantsAFreshFolder: {RESTART, ANY_ORDER, ANY_METRICS},
    NeedsSteps: {"test_a_job_without_steps_is_watched", "test_a_status_is_taken_many_times", ANY_ORDER, ANY_METRICS},
    WatchesOnce: {"test_one_instance_watches_twice"},
    Shared: {"test_two_jobs_in_one_process_do_not_mix"},
    ThreadPerStatus: {"test_a_status_is_taken_many_times"},
    FilePerStatus: {"test_a_status_is_taken_many_times"},
    Scribbles: {"test_its_arguments_stay_as_they_are"},
    BeginsAgain: {RESTART},
    FilePerMetric: {ANY_METRICS},
    WritesHere: {"test_it_writes_in_the_runs_folder_only"},
    LeavesAThread: {"test_it_leaves_nothing_running"},
    LeavesAProcess: {"test_it_leaves_nothing_running"},
    NeedsItsFolder: set(FOLDERS),
    NeedsTheDisk: {FULL},
    Interrupts: {*FOLDERS, FULL},
}
