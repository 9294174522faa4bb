"""``--inline``: the whole job in this process, without master, agents and sockets, so that a debugger works.

The journal, the metrics, the observers and the result are those of a real run; what dies, dies with the process.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from rolemesh.bundling import versions
from rolemesh.digest import digest
from rolemesh.environments import forbid_environments
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, PlacementError
from rolemesh.failures import Failure, describe
from rolemesh.graph.logical import LogicalGraph
from rolemesh.imports import import_paths
from rolemesh.master.publication import DRAIN_S, Publication
from rolemesh.observer import JobStatus, RunInfo
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.select import Selection
from rolemesh.protocol.merge import LineAssembler
from rolemesh.protocol.messages import RankMetrics
from rolemesh.rank.failure import OperatorFailed, summarize, user_traceback
from rolemesh.rank.inline import InlineEngine
from rolemesh.runs import RESULT_FILE, RUN_FILE, write_job_file, write_json
from rolemesh.spec import JobFile
from rolemesh.state import Store
from rolemesh.workload import RankContext, Workload

__all__ = ["run_inline"]

log = logging.getLogger("rolemesh.inline")


def run_inline(job: JobFile, selection: Selection, graph: LogicalGraph, run_dir: Path) -> dict[str, Any]:
    """Run all ranks here, one after the other; returns the content of ``result.json``.

    ``produced_bytes`` in it is what the calls have returned over all steps and ranks, by label.

    Raises `PlacementError` for a collective role of several ranks, and `JobFileError` for a role with packages or a
    folder of its own: those need processes.
    """
    forbid_environments(job, "--inline")
    for name, selected in selection.roles.items():
        size = job.spec.roles[name].world_size
        if selected.cls.group == "collective" and size > 1:
            raise PlacementError(
                f"role {name} is a collective group of {size} ranks, which --inline cannot run in one process",
                where=job.where(("roles", name, "world_size")),
                remedy=f"add roles.{name}.world_size=1",
            )
    write_job_file(run_dir, job.dump())
    with TemporaryDirectory(prefix="rolemesh-inline-") as tmp:
        return _Inline(job, selection, graph, run_dir, Path(tmp)).run()


class _Inline:
    def __init__(self, job: JobFile, selection: Selection, graph: LogicalGraph, run_dir: Path, tmp: Path) -> None:
        self._job, self._selection, self._graph, self._run_dir, self._tmp = job, selection, graph, run_dir, tmp
        self._spec = job.spec
        self._id = secrets.token_hex(4)
        self._started = time.time()
        self._finished = -1
        self._where = ("", -1, "setup")
        sizes = {name: role.world_size for name, role in self._spec.roles.items()}
        labels = [op.label for op in graph.ops]
        self._lines = LineAssembler(graph, sizes)
        self._info = RunInfo(self._spec.name, str(run_dir), self._spec.steps, sizes, tuple(labels), "inline")
        self._observers = JobPlugins()
        for index, chosen in enumerate(selection.observers):
            name = f"{chosen.record.name}#{index}"
            self._observers.create(name, chosen.record, chosen.cls, chosen.options, chosen.where)
        # Observers are told here, where a debugger may stop in them.
        self._publication = Publication(run_dir, JobPlugins(), lambda step, held: None)
        self._store = Store.open(self._spec.state, run_dir, self._id)
        self._epoch = self._store.claim()
        self._produced: dict[str, int] = {}
        self._workloads: dict[tuple[str, int], Workload] = {}
        self._contexts: dict[tuple[str, int], RankContext[Any]] = {}

    def run(self) -> dict[str, Any]:
        import_paths(self._job.base)
        write_json(self._run_dir / RUN_FILE, self._info)
        self._publication.start()
        self._observers.broadcast("job_started", run=self._info)
        self._journal("job_started", {"name": self._spec.name, "steps": self._spec.steps, "agents": []})
        failure: Failure | None = None
        status, code, digests = "done", EXIT_DONE, dict[str, str | None]()
        try:
            self._set_up()
            self._journal("job_running", {})
            engine = self._engine()
            self._produced = engine.produced
            engine.run(finished=self._step_done)
            digests = self._digests()
        except KeyboardInterrupt:
            status, code = "interrupted", EXIT_INTERRUPTED
        except OperatorFailed as failed:
            role = failed.label.partition(".")[0]
            failure = self._failure(failed.error, (role, failed.rank, failed.label), failed.step)
        except (Exception, SystemExit) as error:
            failure = self._failure(error, self._where)
        self._tear_down()
        if failure is not None:
            status, code = "failed", EXIT_FAILED
            self._journal("failure", {"failure": msgspec.to_builtins(failure), "silent_s": 0.0})
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

    def _engine(self) -> InlineEngine:
        return InlineEngine(
            self._graph,
            self._workloads,
            self._contexts,
            steps=self._spec.steps,
            metrics_every=self._spec.metrics.every,
            report=self._report,
        )

    def _report(self, metrics: RankMetrics) -> None:
        lines = tuple(
            self._lines.add(f"{metrics.role}/{metrics.rank}", metrics.lines, time.monotonic(), wall=time.time())
        )
        if lines:
            self._publication.add(lines)
            self._observers.broadcast("steps_finished", metrics=lines)

    def _step_done(self, step: int) -> None:
        self._finished = step
        self._observers.broadcast("status", status=self._status("running"))

    def _status(self, state: str) -> JobStatus:
        return JobStatus(
            self._spec.name,
            state,
            self._epoch,
            self._finished,
            self._spec.steps,
            self._started,
            os.getpid(),
            socket.gethostname(),
        )

    def _journal(self, kind: str, data: dict[str, Any]) -> None:
        events = self._store.append(self._epoch, [(time.time(), kind, data)])
        self._publication.add(events)
        for event in events:
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
        self._journal("job_ended", {"status": status, "message": message, "committed": self._finished})
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
            "plugins": versions(self._selection),
            "run_dir": str(self._run_dir),
        }
        if failure is not None:
            result["failure"] = msgspec.to_builtins(failure)
        self._publication.close()
        if not self._publication.wait(DRAIN_S):
            log.warning(self._publication.give_up())
        self._observers.broadcast("job_ended", result=result)
        write_json(self._run_dir / RESULT_FILE, result)
        self._store.close()
        return result
