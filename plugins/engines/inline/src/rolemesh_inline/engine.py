"""The engine `inline`: it runs the whole job in this process, without master, agents and sockets.

A debugger works in it. Events, metrics, observers and the result are those of any run. The job dies with the process.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from rolemesh.api.failures import Failure, describe
from rolemesh.api.import_ref import import_paths
from rolemesh.api.observer import Event, JobStatus, RankStatus, RunInfo
from rolemesh.api.port import LocalPort
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import EXIT_CODES, JobFileError, RolemeshError, raise_all
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.prepared import Prepared, instances
from rolemesh.job_file.model import JobSpec
from rolemesh.runs.jsonl import event_line, metrics_line
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE, write_job_file, write_json
from rolemesh_inline.calls import ENGINE
from rolemesh_inline.steps import InlineSteps
from rolemesh_inline.variables import RoleVariables
from rolemesh_runtime.claim import claim
from rolemesh_runtime.constructing import constructed
from rolemesh_runtime.digest import digest
from rolemesh_runtime.earlier import size_of
from rolemesh_runtime.metrics import LineBuilder, Metrics
from rolemesh_runtime.operator_failure import OperatorFailed, cause_of, summarize, user_traceback
from rolemesh_runtime.served import ServingPort
from rolemesh_runtime.steady import steady_time
from rolemesh_runtime.variables import role_variables

READ = {"name", "flow", "steps", "until", "seed", "params", "roles", "metrics", "observers", "plugins", "engine"}
"""Keys of the job file that this engine reads."""
KEEPS = "the engine inline writes no snapshots; another engine keeps the last state on disk"


class InlineEngine(Engine):
    """Runs all ranks in the waiting process, one after the other."""

    @classmethod
    def check(cls, job: Prepared) -> Sequence[str]:
        """Return a warning for each key of the job file that this engine does not read, and for
        each elastic role."""
        spec = job.job.spec
        where = job.job.where
        roles = job.elastic.items()
        paths: list[tuple[str, ...]] = [(key,) for key in JobSpec.model_fields if key in spec.model_fields_set - READ]
        paths += [("plugins", kind) for kind, _ in job.selection.declared if kind in ("scalers", "transports")]
        unread = [f"{where(path)}: it has no effect with the engine inline" for path in paths]
        fewest = [
            f"{where(('roles', n))}: it has {least} of {most} ranks with the engine inline"
            for n, (least, most) in roles
        ]
        return [*super().check(job), *unread, *fewest]

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Check that the job can run in one process. Elastic roles get their minimum number of ranks. Each collective
        role gets one rank, which has the same values in one piece. The job runs in `wait`.

        Raises `JobFileError` for a role with packages or a folder of its own, because those need processes, or
        `Problems`.
        """
        roles = job.job.spec.roles
        selected = job.selection.roles
        alone = {name: 1 for name in roles if selected[name].cls.group == "collective" and roles[name].world_size > 1}
        for name in alone:
            say(f"one process cannot have a group of {roles[name].world_size} ranks: role {name} runs as one rank")
        for text in self.check(job):
            say(f"warning: {text}")
        job = job.sized({**{role: least for role, (least, _) in job.elastic.items()}, **alone})
        raise_all(list(_needs_processes(job)))
        return InlineRun(job, run_dir, say)


def _needs_processes(job: Prepared) -> Iterator[RolemeshError]:
    for name, role in job.job.spec.roles.items():
        for key in (key for key in ("pip", "working_dir") if getattr(role.runtime_env, key)):
            what = f"the engine inline runs all roles in one process, which cannot have role {name}'s own {key}"
            where = job.job.where(("roles", name, "runtime_env", key))
            yield JobFileError(
                what, where=where, remedy="run it with an engine whose roles have processes of their own"
            )


class _Stopped(Exception):
    """The user has requested the end of the job."""


class InlineRun(RunHandle):
    """A job that runs in `wait`, one rank after the other.

    ``produced_bytes`` in its result is the size of the results of the calls over all steps and ranks, by label.
    """

    def __init__(self, job: Prepared, run_dir: Path, say: Say) -> None:
        super().__init__(run_dir)
        self._job = job.job
        self._selection = job.selection
        self._graph = job.graph
        self._spec = job.job.spec
        self._sizes = {name: int(role.world_size) for name, role in self._spec.roles.items()}
        self._builder = LineBuilder(self._graph, self._sizes)
        self._result: dict[str, Any] | None = None
        self._observers = instances(job.selection.observers)
        self._say = say
        self._stopped = False
        self._started = 0.0
        self._finished = -1
        self._seq = 0
        self._where = ("", -1, "setup")
        self._verdict = ""
        self._produced: dict[str, int] = {}
        self._steps: InlineSteps | None = None
        self._workloads: dict[RankRef, Workload] = {}
        self._contexts: dict[RankRef, RankContext] = {}
        self._ports: dict[RankRef, LocalPort] = {}
        self._variables = RoleVariables({})

    def status(self) -> JobStatus | None:
        """Return the present status; None for a job that has not begun or is over."""
        if not self._started or self._result is not None:
            return None
        node = socket.gethostname()
        pid = os.getpid()
        spec = self._spec
        contexts = list(self._contexts.items())
        ranks = tuple(RankStatus(*key, node, pid, "running", max(ctx.step, 0)) for key, ctx in contexts)
        return JobStatus(spec.name, "running", 1, self._finished, spec.steps, self._started, pid, node, ranks=ranks)

    def stop(self, reason: str) -> None:
        """End the job after the current step."""
        self._stopped = True

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Run the job. A `KeyboardInterrupt` ends it at once."""
        if self._result is None:
            with ExitStack() as held:
                if (earlier := held.enter_context(claim(self.run_dir))) is not None:
                    self._say(f"the run before is now in {earlier} ({size_of(earlier) / 1000:,.0f} kB)")
                self._tmp = Path(held.enter_context(TemporaryDirectory(prefix="rolemesh-inline-")))
                self._events = held.enter_context((self.run_dir / EVENTS_FILE).open("wb", buffering=0))
                self._metrics = held.enter_context((self.run_dir / METRICS_FILE).open("wb", buffering=0))
                held.callback(lambda: self._variables.restore())
                self._result = self._run()
        return self._result

    def result(self) -> dict[str, Any] | None:
        """Return the result of the job, if it has run."""
        return self._result

    def _run(self) -> dict[str, Any]:
        self._started = steady_time()
        write_job_file(self.run_dir, self._job.dump())
        import_paths(self._job.base)
        labels = tuple(op.label for op in self._graph.ops)
        base = str(self._job.base)
        info = RunInfo(self._spec.name, str(self.run_dir), self._spec.steps, self._sizes, labels, "inline", base=base)
        write_json(self.run_dir / RUN_FILE, info)
        self._observers.broadcast("job_started", run=info)
        self._tell("job_started", {"name": self._spec.name, "steps": self._spec.steps, "agents": []})
        failure: Failure | None = None
        status = "done"
        digests = dict[str, str | None]()
        try:
            self._set_up()
            self._tell("job_running", {})
            ranks = (self._workloads, self._contexts, self._ports)
            every = self._spec.metrics.every or 1
            steps = InlineSteps(
                self._graph,
                *ranks,
                steps=self._spec.steps,
                metrics_every=every,
                report=self._report,
                become=self._variables.become,
            )
            self._steps = steps
            self._produced = steps.produced
            steps.run(finished=self._step_done)
            digests = self._digests()
            verdicts = [f"{k.in_words}: {why}" for k, w in self._workloads.items() if (why := w.verdict())]
            status = "failed" if verdicts else "done"
            self._verdict = "\n".join(verdicts[:1])
        except (KeyboardInterrupt, _Stopped):
            status = "interrupted"
        except OperatorFailed as failed:
            role = failed.label.partition(".")[0]
            failure = self._failure(failed.error, (role, failed.rank, failed.label), failed.step)
        except (Exception, SystemExit) as error:
            failure = self._failure(error, self._where)
        self._tear_down()
        if failure is not None:
            status = "failed"
            self._tell("failure", {"failure": msgspec.to_builtins(failure), "silent_s": 0.0})
        return self._end(status, digests, failure)

    def _set_up(self) -> None:
        folders = {"run_dir": self.run_dir, "tmp_dir": self._tmp, "base": self._job.base}
        job: dict[str, Any] = {"job": self._spec.name, "seed": self._spec.seed, "steps": self._spec.steps, **folders}
        job["plugins"] = {k: partial(lambda s: s.cls(s.options), s) for k, s in self._selection.declared.items()}
        own: dict[str, dict[str, str]] = {}
        for name, role in self._spec.roles.items():
            self._where = (name, 0, "setup")
            own[name] = role_variables(self._selection.roles[name], role.runtime_env.env_vars)[1]
        self._variables = RoleVariables(own)
        for name, role in self._spec.roles.items():
            selected = self._selection.roles[name]
            size = self._sizes[name]
            sizes = {"world_size": size, "local_world_size": size, "cpus": role.resources.cpu}
            sizes["memory_gb"] = role.resources.memory_gb
            for rank in range(size):
                self._where = (name, rank, "setup")
                self._variables.become(name)
                me: dict[str, Any] = {"role": name, "rank": rank, "local_rank": rank, **sizes}
                port = ServingPort()
                ctx = RankContext(options=selected.options, port=port, **job, **me)
                workload = constructed(selected.cls, selected.options)
                workload.setup(ctx)
                ref = RankRef(name, rank)
                self._workloads[ref] = workload
                self._contexts[ref] = ctx
                self._ports[ref] = port

    def _tear_down(self) -> None:
        """Tear all workloads down. As in a rank's process, an exception goes to the log and changes nothing."""
        for ref, workload in self._workloads.items():
            try:
                workload.teardown()
            except Exception:
                logging.getLogger(str(ref)).exception("teardown failed")

    def _report(self, parts: dict[str, list[Metrics]]) -> None:
        line = self._builder.build(parts, time.time())
        if self._steps is not None:
            self._steps.reason = self._steps.reason or self._spec.until.reason(line)
        self._metrics.write(metrics_line(line)[1])
        self._observers.broadcast("steps_finished", metrics=(line,))

    def _step_done(self, step: int) -> None:
        self._finished = step
        until = self._spec.until
        if until.max_s and steady_time() >= self._started + until.max_s and self._steps is not None:
            self._steps.reason = self._steps.reason or f"{until.max_s:g} s have passed"
        self._observers.broadcast("status", status=self.status())
        if self._stopped:
            raise _Stopped

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self._seq += 1
        event = Event(self._seq, 1, time.time(), kind, data)
        self._events.write(event_line(event)[1])
        self._observers.broadcast("event", event=event)

    def _failure(self, error: BaseException, where: tuple[str, int, str], step: int = -1) -> Failure:
        role, rank, operator = where
        return Failure(
            cause_of(error), role, rank, "local", operator, step, summarize(error), user_traceback(error, ENGINE)
        )

    def _digests(self) -> dict[str, str | None]:
        """The digest of each role's state, over all its ranks; None if a rank of the role has no state."""
        found: dict[str, list[str]] = {role: [] for role in self._sizes}
        for ref, workload in self._workloads.items():
            try:
                if (state := workload.snapshot()) is not None:
                    found[ref.role].append(digest(state))
            except Exception:  # the job is done, whatever its state is
                logging.getLogger(str(ref)).exception("snapshot failed")
        whole = {role: "".join(each) for role, each in found.items() if len(each) == self._sizes[role]}
        return dict.fromkeys(found) | {role: sha256(each.encode()).hexdigest() for role, each in whole.items()}

    def _end(self, status: str, digests: dict[str, str | None], failure: Failure | None) -> dict[str, Any]:
        message = describe(failure) if failure else self._verdict
        spec = self._spec
        self._tell("job_ended", {"status": status, "message": message, "committed": self._finished})
        not_kept = KEEPS if any(digests.values()) else ""
        reason = self._steps.reason if self._steps is not None else ""
        result: dict[str, Any] = {
            "name": spec.name,
            "job_id": secrets.token_hex(4),
            "status": status,
            "message": message,
            "exit_code": EXIT_CODES[status],
            "steps": spec.steps,
            "reason": reason,
            "committed_steps": self._finished + 1,
            "wall_s": round(steady_time() - self._started, 3),
            "state_sha256": digests,
            "produced_bytes": self._produced,
            "plugins": self._selection.versions(),
            "run_dir": str(self.run_dir),
            "not_kept": not_kept,
        }
        result |= {"failure": msgspec.to_builtins(failure)} if failure is not None else {}
        self._observers.broadcast("job_ended", result=result)
        write_json(self.run_dir / RESULT_FILE, result)
        return result
