"""The engine `inline`: the whole job in this process, without master, agents and sockets, so that a debugger works.

The events, the metrics, the observers and the result are those of any run; what dies, dies with the process.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from rolemesh.api.failures import Failure, describe
from rolemesh.api.import_ref import import_paths
from rolemesh.api.observer import Event, JobStatus, RankStatus, RunInfo
from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, PlacementError
from rolemesh.inline.steps import InlineSteps
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.prepared import Prepared
from rolemesh.plugins.manager import JobPlugins
from rolemesh.runs.claim import claim
from rolemesh.runs.digest import digest
from rolemesh.runs.jsonl import LineFile, event_line, metrics_line
from rolemesh.runs.metrics import LineBuilder, Metrics, RankMetrics
from rolemesh.runs.operator_failure import OperatorFailed, summarize, user_traceback
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE, Run, write_job_file, write_json
from rolemesh.spec.role_environments import forbid_environments

__all__ = ["InlineEngine", "run_inline"]

log = logging.getLogger("rolemesh.inline")


class InlineEngine(Engine):
    """Runs all ranks in the process that waits, one after the other."""

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Check that the job can run in one process; it does when somebody waits for it."""
        return InlineRun(one_process(job), run_dir)


class InlineRun(RunHandle):
    """A job that runs in `wait`."""

    def __init__(self, job: Prepared, run_dir: Path) -> None:
        super().__init__(run_dir)
        self._job = job
        self._inline: _Inline | None = None
        self._stopped = False

    def status(self) -> JobStatus | None:
        """The present picture; of a job that has not begun or is over, None."""
        return self._inline.status("running") if self._inline is not None and self.result() is None else None

    def stop(self, reason: str) -> None:
        """The job ends after the step that it is at."""
        self._stopped = True

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Run the job. A `KeyboardInterrupt` ends it where it is."""
        if (done := self.result()) is None:
            with claim(self.run_dir):
                done = run_inline(self._job, self.run_dir, stopped=lambda: self._stopped, begun=self._begun)
        return done

    def result(self) -> dict[str, Any] | None:
        """How the job has ended, if it has run."""
        return Run(self.run_dir).result() if self._inline is not None else None

    def _begun(self, inline: _Inline) -> None:
        self._inline = inline


def one_process(job: Prepared) -> Prepared:
    """The job with the fewest ranks of its elastic roles.

    Raises `PlacementError` for a collective role of several ranks, and `JobFileError` for a role with packages or a
    folder of its own: those need processes.
    """
    job = job.sized({role: least for role, (least, _) in job.elastic.items()})
    forbid_environments(job.job, "--inline")
    for name, selected in job.selection.roles.items():
        size = job.job.spec.roles[name].world_size
        if selected.cls.group == "collective" and size > 1:
            raise PlacementError(
                f"role {name} is a collective group of {size} ranks, which --inline cannot run in one process",
                where=job.job.where(("roles", name, "world_size")),
                remedy=f"add roles.{name}.world_size=1",
            )
    return job


def run_inline(
    job: Prepared,
    run_dir: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
    begun: Callable[[_Inline], None] = lambda inline: None,
) -> dict[str, Any]:
    """Run all ranks here, one after the other; returns the content of ``result.json``.

    ``produced_bytes`` in it is what the calls have returned over all steps and ranks, by label. `stopped` is asked
    after each step.
    """
    write_job_file(run_dir, job.job.dump())
    with TemporaryDirectory(prefix="rolemesh-inline-") as tmp:
        inline = _Inline(job, run_dir, Path(tmp), stopped)
        begun(inline)
        return inline.run()


class _Stopped(Exception):
    """Somebody has asked the job to end."""


class _Inline:
    def __init__(self, job: Prepared, run_dir: Path, tmp: Path, stopped: Callable[[], bool]) -> None:
        self._job, self._selection, self._graph = job.job, job.selection, job.graph
        self._run_dir, self._tmp, self._stopped = run_dir, tmp, stopped
        self._spec = job.job.spec
        self._id = secrets.token_hex(4)
        self._started = time.time()
        self._finished = -1
        self._where = ("", -1, "setup")
        sizes = {name: int(role.world_size) for name, role in self._spec.roles.items()}
        labels = [op.label for op in job.graph.ops]
        self._sizes, self._builder = sizes, LineBuilder(job.graph, sizes)
        self._parts: dict[int, dict[str, list[Metrics]]] = {}
        self._info = RunInfo(self._spec.name, str(run_dir), self._spec.steps, sizes, tuple(labels), "inline")
        self._observers = JobPlugins()
        for index, chosen in enumerate(job.selection.observers):
            name = f"{chosen.record.name}#{index}"
            self._observers.create(name, chosen.record, chosen.cls, chosen.options, chosen.where)
        self._seq = 0
        self._events, self._metrics = (
            LineFile(run_dir / EVENTS_FILE, "seq", 1),
            LineFile(run_dir / METRICS_FILE, "step", 0),
        )
        self._produced: dict[str, int] = {}
        self._workloads: dict[tuple[str, int], Workload] = {}
        self._contexts: dict[tuple[str, int], RankContext[Any]] = {}

    def run(self) -> dict[str, Any]:
        import_paths(self._job.base)
        write_json(self._run_dir / RUN_FILE, self._info)
        self._observers.broadcast("job_started", run=self._info)
        self._tell("job_started", {"name": self._spec.name, "steps": self._spec.steps, "agents": []})
        failure: Failure | None = None
        status, code, digests = "done", EXIT_DONE, dict[str, str | None]()
        try:
            self._set_up()
            self._tell("job_running", {})
            steps = self._steps()
            self._produced = steps.produced
            steps.run(finished=self._step_done)
            digests = self._digests()
        except (KeyboardInterrupt, _Stopped):
            status, code = "interrupted", EXIT_INTERRUPTED
        except OperatorFailed as failed:
            role = failed.label.partition(".")[0]
            failure = self._failure(failed.error, (role, failed.rank, failed.label), failed.step)
        except (Exception, SystemExit) as error:
            failure = self._failure(error, self._where)
        self._tear_down()
        if failure is not None:
            status, code = "failed", EXIT_FAILED
            self._tell("failure", {"failure": msgspec.to_builtins(failure), "silent_s": 0.0})
        return self._end(status, code, digests, failure)

    def _set_up(self) -> None:
        for name, role in self._spec.roles.items():
            for rank in range(role.world_size):
                selected = self._selection.roles[name]
                self._where = (name, rank, "setup")
                os.environ.update({**selected.cls.env, **role.runtime_env.env_vars})
                ctx: RankContext[Any] = RankContext(
                    options=selected.options,
                    job=self._spec.name,
                    role=name,
                    rank=rank,
                    world_size=role.world_size,
                    local_rank=rank,
                    local_world_size=role.world_size,
                    seed=self._spec.seed,
                    steps=self._spec.steps,
                    cpus=role.resources.cpu,
                    run_dir=self._run_dir,
                    tmp_dir=self._tmp,
                    base=self._job.base,
                )
                workload: Workload = selected.cls()
                workload.setup(ctx)
                self._workloads[name, rank], self._contexts[name, rank] = workload, ctx

    def _tear_down(self) -> None:
        """As in a rank's process, what raises here is told and changes nothing."""
        for (role, rank), workload in self._workloads.items():
            try:
                workload.teardown()
            except Exception:
                logging.getLogger(f"{role}/{rank}").exception("teardown failed")

    def _steps(self) -> InlineSteps:
        return InlineSteps(
            self._graph,
            self._workloads,
            self._contexts,
            steps=self._spec.steps,
            metrics_every=self._spec.metrics.every,
            report=self._report,
        )

    def _report(self, metrics: RankMetrics) -> None:
        for line in metrics.lines:
            self._parts.setdefault(line.step, {}).setdefault(line.role, []).append(line)
        whole = [step for step, parts in sorted(self._parts.items()) if self._is_whole(parts)]
        if whole:
            wall = time.time()
            lines = tuple(self._builder.build(self._parts.pop(step), wall) for step in whole)
            self._metrics.append([metrics_line(line) for line in lines])
            self._observers.broadcast("steps_finished", metrics=lines)

    def _is_whole(self, parts: Mapping[str, Sequence[Metrics]]) -> bool:
        return all(len(parts.get(role, ())) == size for role, size in self._sizes.items())

    def _step_done(self, step: int) -> None:
        self._finished = step
        self._observers.broadcast("status", status=self.status("running"))
        if self._stopped():
            raise _Stopped

    def status(self, state: str) -> JobStatus:
        """The present picture."""
        node, pid = socket.gethostname(), os.getpid()
        ranks = tuple(
            RankStatus(*key, node, pid, "running", max(ctx.step, 0)) for key, ctx in [*self._contexts.items()]
        )
        spec = self._spec
        return JobStatus(spec.name, state, 1, self._finished, spec.steps, self._started, pid, node, ranks=ranks)

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self._seq += 1
        event = Event(self._seq, 1, time.time(), kind, data)
        self._events.append([event_line(event)])
        self._observers.broadcast("event", event=event)

    def _failure(self, error: BaseException, where: tuple[str, int, str], step: int = -1) -> Failure:
        role, rank, operator = where
        return Failure("exception", role, rank, "local", operator, step, summarize(error), user_traceback(error))

    def _digests(self) -> dict[str, str | None]:
        result: dict[str, str | None] = {}
        for name, role in self._spec.roles.items():
            digests = [self._digest(name, rank) for rank in range(role.world_size)]
            result[name] = None if None in digests else sha256("".join(filter(None, digests)).encode()).hexdigest()
        return result

    def _digest(self, role: str, rank: int) -> str | None:
        self._where = (role, rank, "snapshot")
        state = self._workloads[role, rank].snapshot()
        return digest(state) if state is not None else None

    def _end(self, status: str, code: int, digests: dict[str, str | None], failure: Failure | None) -> dict[str, Any]:
        message = describe(failure) if failure else ""
        self._tell("job_ended", {"status": status, "message": message, "committed": self._finished})
        result: dict[str, Any] = {
            "name": self._spec.name,
            "job_id": self._id,
            "status": status,
            "message": message,
            "exit_code": code,
            "steps": self._spec.steps,
            "committed_steps": self._finished + 1,
            "wall_s": round(time.time() - self._started, 3),
            "state_sha256": digests,
            "produced_bytes": self._produced,
            "plugins": self._selection.versions(),
            "run_dir": str(self._run_dir),
        }
        if failure is not None:
            result["failure"] = msgspec.to_builtins(failure)
        self._events.close()
        self._metrics.close()
        self._observers.broadcast("job_ended", result=result)
        write_json(self._run_dir / RESULT_FILE, result)
        return result
