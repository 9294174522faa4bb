"""Engines that each do one thing wrong, and the standard tests that find it. All run jobs as `inline` does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from msgspec.structs import replace

from rolemesh.api.failures import Failure
from rolemesh.api.observer import JobStatus
from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Combine
from rolemesh.job.engine import RunHandle, Say
from rolemesh.job.prepared import Prepared
from rolemesh.runs.run import JOB_FILE
from rolemesh_inline import InlineEngine
from rolemesh_inline.engine import InlineRun
from rolemesh_inline.steps import InlineSteps
from rolemesh_runtime.values import join_chunks

__all__ = ["BROKEN", "Sound"]

HOME = "rolemesh_inline.engine"


class Sound(InlineEngine):
    """Runs a job as `inline` does, with other runs and steps if a subclass has them."""

    runs: ClassVar[type[InlineRun]] = InlineRun
    steps: ClassVar[type[InlineSteps]] = InlineSteps

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        with patch(f"{HOME}.InlineRun", self.runs):
            handle = super().start(job, run_dir, detached=detached, say=say)
        wait = handle.wait

        def waiting(interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
            with patch(f"{HOME}.InlineSteps", self.steps):
                return wait(interrupted)

        handle.wait = waiting  # type: ignore[method-assign]
        return handle


# ------------------------------------------------------------------------------------------------------------- runs


class Discreet(InlineRun):
    """Tells observers of no end."""

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        with patch.object(type(self._observers), "broadcast") if kind == "job_ended" else ExitStack():
            super()._tell(kind, data)


class Counting(InlineRun):
    """Leaves numbers of events out."""

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self._seq += 1
        super()._tell(kind, data)


class Abridging(InlineRun):
    """Leaves the job file without what overrides and defaults say."""

    def _end(self, status: str, digests: dict[str, str | None], failure: Failure | None) -> dict[str, Any]:
        text = (self.run_dir / JOB_FILE).read_text()
        (self.run_dir / JOB_FILE).write_text(text.replace("steps: 10", "steps: 9"))
        return super()._end(status, digests, failure)


class Fine(InlineRun):
    """Writes a line of metrics for each step, whatever the job file says."""

    def __init__(self, job: Prepared, run_dir: Path, say: Say) -> None:
        super().__init__(job, run_dir, say)
        self._spec = self._spec.model_copy(update={"metrics": self._spec.metrics.model_copy(update={"every": 1})})


class Helped(InlineRun):
    """Leaves a helper behind."""

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        return super().wait(interrupted)


class Threaded(InlineRun):
    """Leaves a thread behind for a while."""

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        threading.Timer(2.0, str).start()
        return super().wait(interrupted)


class Content(InlineRun):
    """Takes an operator that leaves with code 0 for the end of a good job."""

    def _end(self, status: str, digests: dict[str, str | None], failure: Failure | None) -> dict[str, Any]:
        left = failure is not None and "SystemExit" in failure.message
        return super()._end("done" if left else status, digests, None if left else failure)


class Vague(InlineRun):
    """Says of a rank that fails at its start only that the job has failed."""

    def _failure(self, error: BaseException, where: tuple[str, int, str], step: int = -1) -> Failure:
        return super()._failure(error, where if step >= 0 else ("", -1, ""), step)


class Boasting(InlineRun):
    """Takes steps as done that have just begun, and some more."""

    def status(self) -> JobStatus | None:
        status = super().status()
        return None if status is None else replace(status, committed=status.committed + 3)


class Nameless(InlineRun):
    """Gives all ranks one number."""

    def status(self) -> JobStatus | None:
        status = super().status()
        return status and replace(status, ranks=tuple(replace(rank, rank=0) for rank in status.ranks))


class Undying(InlineRun):
    """Has a status after its end."""

    last: JobStatus | None = None

    def status(self) -> JobStatus | None:
        self.last = super().status() or self.last
        return self.last


class Raising(InlineRun):
    """Lets an interrupt out of `wait`."""

    def _end(self, status: str, digests: dict[str, str | None], failure: Failure | None) -> dict[str, Any]:
        result = super()._end(status, digests, failure)
        if status == "interrupted" and not self._stopped:
            raise KeyboardInterrupt
        return result


class Hurried(InlineRun):
    """Tears no rank down."""

    def _tear_down(self) -> None:
        """Do nothing."""


class Seedless(InlineRun):
    """Gives ranks another seed than the job's."""

    def __init__(self, job: Prepared, run_dir: Path, say: Say) -> None:
        super().__init__(job, run_dir, say)
        self._spec = self._spec.model_copy(update={"seed": 0})


class Keeping(InlineRun):
    """Does not remove the folder for temporary files."""

    def _set_up(self) -> None:
        self._tmp = self.run_dir / "kept"
        self._tmp.mkdir()
        super()._set_up()


class Blended(InlineRun):
    """Lets all roles see the variables of the last one."""

    def _set_up(self) -> None:
        super()._set_up()
        self._variables.become = lambda role: None  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------------ steps


class Newest(InlineSteps):
    """Passes the value of this step instead of an older one."""

    def _parts(self, edge: Edge, rank: int, made: int) -> list[list[Any]]:
        newer = made + edge.lag
        return super()._parts(edge, rank, newer if (edge.id, newer) in self._values else made)


class Sharing(InlineSteps):
    """Passes one object to all consumers of a value."""

    def _parts(self, edge: Edge, rank: int, made: int) -> list[list[Any]]:
        for chunks in self._values[edge.id, made].values():
            for chunk in chunks:
                value = _SHARED.setdefault(chunk._pickle, chunk.value())
                chunk.value = lambda value=value: value  # type: ignore[method-assign]
        return super()._parts(edge, rank, made)


_SHARED: dict[bytes, Any] = {}


class Even(InlineSteps):
    """Gives all ranks as many rows as the one with the fewest."""

    def _parts(self, edge: Edge, rank: int, made: int) -> list[list[Any]]:
        found = super()._parts(edge, rank, made)
        if edge.param == "rows":
            rows = 2 if made % 3 < 2 else 3
            found = [[chunk[:rows] for chunk in chunks] for chunks in found]
        return found


class Joining(InlineSteps):
    """Makes one chunk of a stream."""

    def _stream(self, edge: Edge, parts: list[list[Any]], how: Combine) -> Iterator[Any]:
        yield join_chunks([*super()._stream(edge, parts, how)])


class Always(InlineSteps):
    """Runs every call in each step."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._activity.active = lambda op, step: True  # type: ignore[method-assign]
        self._activity.consumed = lambda edge, step, steps: True  # type: ignore[method-assign]


class Repeating(InlineSteps):
    """Commits each step twice."""

    def run(self, finished: Callable[[int], None] = lambda step: None) -> int:
        def twice(step: int) -> None:
            for workload in self._workloads.values():
                workload.committed(step)
            finished(step)

        return super().run(twice)


# ---------------------------------------------------------------------------------------------------------- engines


class Forgetful(Sound):
    """Writes into the folder of the run before."""

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        handle = super().start(job, run_dir, detached=detached, say=say)
        wait = handle.wait

        @contextmanager
        def unclaimed(run_dir: Path) -> Iterator[None]:
            run_dir.mkdir(parents=True, exist_ok=True)
            yield

        def waiting(interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
            with patch(f"{HOME}.claim", unclaimed):
                return wait(interrupted)

        handle.wait = waiting  # type: ignore[method-assign]
        return handle


class Promising(Sound):
    """Says that a job goes on without this process, and runs it only where somebody waits."""

    outlives = True

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        handle = super().start(job, run_dir, detached=detached, say=say)
        handle.leave = lambda: None  # type: ignore[method-assign]
        return handle


def _with(found: type[Any]) -> type[Sound]:
    """Return the engine with these runs or steps."""
    member = "runs" if issubclass(found, InlineRun) else "steps"
    return type(f"{found.__name__}Engine", (Sound,), {member: found, "__doc__": found.__doc__, "__module__": __name__})


def __getattr__(name: str) -> type[Any]:
    """Return the engine of this name, which a job names with this module."""
    for engine in BROKEN:
        if engine.__name__ == name:
            return engine
    raise AttributeError(name)


ENDS, VALUES = "test_a_job_runs_to_its_end", "test_values_and_states_are_those_of_any_engine"
CONTEXT, FAILS = "test_the_context_of_a_rank_keeps_its_promises", "test_an_operator_that_raises_is_a_failed_job"
STATUS = "test_it_reports_the_state_of_the_job_and_ends_it_on_request"
_FOUND_BY: dict[str, tuple[type[Any], ...]] = {
    ENDS: (Discreet, Counting, Abridging, Fine, Helped, Threaded),
    VALUES: (Newest, Sharing, Even, Joining, Always),
    CONTEXT: (Hurried, Seedless, Keeping, Blended, Repeating),
    FAILS: (Content, Vague),
    STATUS: (Boasting, Nameless, Undying),
    "test_an_interrupt_calls_back_and_ends_no_wait": (Raising,),
}
BROKEN: dict[type[Any], set[str]] = {
    **{_with(each): {test} for test, found in _FOUND_BY.items() for each in found},
    Forgetful: {"test_an_earlier_run_of_the_name_is_set_aside", "test_a_job_that_is_alive_keeps_its_name"},
    Promising: {"test_a_detached_job_outlives_its_starter"},
}
