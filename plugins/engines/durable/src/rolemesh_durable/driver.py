"""A driver: it starts a job's master on a backend, follows it, and restarts the job if it can continue elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rolemesh.api.cluster import ClusterView
from rolemesh.api.observer import JobStatus
from rolemesh.errors import BackendError, JobFileError
from rolemesh.job.engine import RunHandle, Say
from rolemesh.job.explain import explain
from rolemesh.job.planning import check_placed
from rolemesh.job.prepared import Prepared, instances
from rolemesh.placement import PlacementPlan
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.select import Selection
from rolemesh.runs.run import LOGS_DIR, write_job_file
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.trust import TRUST_FLAG
from rolemesh_durable.backends import Backend, Shared
from rolemesh_durable.bundle import bundle_job, snapshot_plan
from rolemesh_durable.carried import carried
from rolemesh_durable.control import resume
from rolemesh_durable.control.claim import claim
from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_durable.control.living import LivingRun, answers
from rolemesh_durable.control.watch import ANSWER_S, PATIENCE_S, follow
from rolemesh_durable.extensions.scaling.growth import Followed, Growth
from rolemesh_durable.hosting.admission import find_room
from rolemesh_durable.options import options_in
from rolemesh_durable.runs import PLAN_FILE
from rolemesh_runtime.json_file import write_json
from rolemesh_runtime.waiting import WaitingJob

__all__ = ["Driver", "in_background", "stop_job", "watchers"]


class Driver(RunHandle):
    """Drives one job. If the job fails because nodes were lost, it restarts with fewer
    ranks of its elastic roles."""

    def __init__(
        self,
        asked: Prepared,
        run_dir: Path,
        options: Any,
        backend: type[Backend],
        backend_options: BaseModel,
        *,
        owner: bool,
        say: Say,
    ) -> None:
        """`asked` is the requested job with its elastic roles; `options` are the engine's.

        `owner`: the job ends with this process.
        """
        super().__init__(run_dir)
        self._asked, self._job, self._options = asked, asked, options
        self._kind, self._backend_options, self._owner, self._say = backend, backend_options, owner, say
        self._resume, self._trusted = options.resume, options.trust_pickles
        self._backend: Backend | None = None
        self._lost: frozenset[str] = frozenset()
        self._run = LivingRun(run_dir)

    def start(self) -> None:
        """Start the master, and return when it answers. Raises `RolemeshError`; then nothing has been started."""
        backend = self._backend = self._kind(self._backend_options, self._lost)
        try:
            self._start(backend)
        except BaseException:
            self.close()
            raise

    def status(self) -> JobStatus | None:
        """Return the present status, from the master."""
        return self._run.status()

    def result(self) -> dict[str, Any] | None:
        """Return the result of the job."""
        return self._run.result()

    def stop(self, reason: str) -> None:
        """Send the request to the master."""
        stop_job(self.run_dir, reason)

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Follow the job to its end."""
        while True:
            with ExitStack() as parts:
                if (growth := self._growth()) is not None:
                    growth.start()
                    parts.callback(growth.stop)
                result = self._follow(interrupted)
            if not self._loses(result):
                return result
            self.close()
            # What this driver's own job has written a moment ago is no stranger's.
            self._resume, self._trusted = str(self.run_dir), True
            self.start()

    def leave(self) -> None:
        """Return when the job runs. Raises `BackendError` if its master dies before that."""
        backend = self._backend
        assert backend is not None
        with ControlClient(self.run_dir) as client:
            while self.result() is None:
                with suppress(MasterGoneError):
                    if client.watch(owner=True).status.state == "running":
                        client.detach()
                        self._backend = None  # it is not ours any more
                        return
                if not backend.alive() and self.result() is None:
                    what = "the master died while it started the job"
                    raise BackendError(what, where=str(self.run_dir / LOGS_DIR), remedy="look into its log there")
                time.sleep(0.1)

    def close(self) -> None:
        """Wait for the job's processes to be gone."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _start(self, backend: Backend) -> None:
        spec = self._asked.job.spec

        def on(cluster: ClusterView) -> PlacementPlan:
            self._job = self._asked.fitted(cluster)
            return self._job.plan(cluster)

        cluster = backend.cluster()
        plan = on(cluster)
        check_placed(plan, self._job.job)
        if isinstance(backend, Shared):
            options = options_in(self._asked.selection)
            where = self._asked.job.where(("engine", "options", "room_wait_s"))
            turn = backend.queue(spec.name, options.priority, on)
            with WaitingJob(self.run_dir, self._say) as waiting:
                plan, cluster = find_room(turn, options.room_wait_s, where, waiting.say)
        if self._resume == "auto":
            self._resume = str(self.run_dir) if resume.unfinished(self.run_dir) else None
        origin = self._origin(self._resume) if self._resume else ("", -1)
        with claim(self.run_dir, lambda: backend.knows(spec.name), answers) as (earlier, lock):
            if earlier is not None:
                self._say(resume.moved(earlier, resumed=bool(self._resume)))
            if earlier is not None and Path(origin[0]).is_relative_to(self.run_dir):
                origin = (str(earlier / Path(origin[0]).relative_to(self.run_dir)), origin[1])
            job = self._job
            bundle = bundle_job(
                job,
                plan,
                cluster,
                run_dir=str(self.run_dir),
                backend=backend.name,
                may_move=backend.nodes_join or len(cluster.nodes) > 1,
                rehearsed=self._options.rehearsed,
                ray_address=backend.address,
                origin=origin,
                trust_pickles=self._trusted,
                ranges=self._asked.elastic,
                environ={} if backend.inherits else carried(os.environ),
            )
            write_job_file(self.run_dir, job.job.dump())
            write_json(self.run_dir / PLAN_FILE, explain(job, plan, cluster))
            backend.start(bundle, lock)

    def _origin(self, reference: str) -> tuple[str, int]:
        """Return folder and step of the snapshot to start from."""
        job = self._job
        if options_in(job.selection).snapshots.enabled is False:
            raise JobFileError(
                "a job that resumes restores its ranks from snapshots, and takes some itself",
                where=job.job.where(("engine", "options", "snapshots", "enabled")),
                remedy="leave engine.options.snapshots.enabled out",
            )
        roles = job.selection.roles
        stateful = [name for name, selected in roles.items() if selected.cls.stateful(selected.options)]
        source = resume.find_source(reference, self.run_dir.parent)
        found, damaged = resume.find_origin(source, job.job.spec.steps, stateful, disk.flow_lines(job.graph))
        for text in damaged:
            self._say(f"warning: {text}")
        restored = [name for name in stateful if not roles[name].cls.repeats(roles[name].options)]
        resume.check_in_flight(found, job.graph, restored)
        resume.check_pickles(found, job.graph, trusted=self._trusted)
        self._say(f"resuming after step {found.step} from {found.path}")
        return str(found.path), found.step

    def _follow(self, interrupted: Callable[[], None] | None) -> dict[str, Any] | None:
        observers = watchers(self._job.selection)
        info = self._run.info()
        if info is not None:
            observers.broadcast("job_started", run=info)
        told = False

        def alive() -> bool:
            nonlocal told
            lives = self._backend is not None and self._backend.alive()
            if lives and not told:
                told = True
                self._say(f"the master has been silent for {PATIENCE_S:g} s: it is waited for")
            return lives

        return follow(self.run_dir, observers, owner=self._owner, alive=alive, interrupted=interrupted)

    def _growth(self) -> Growth | None:
        """Return what lets the job that runs grow; None in a rehearsal."""
        if self._options.rehearsed or self._backend is None:
            return None
        job = self._job
        plan = snapshot_plan(options_in(job.selection).snapshots, bool(job.job.spec.failover), resumes=False)
        followed = Followed(self._asked, job, self._backend, self.run_dir, plan.enabled, self._say)
        return Growth(followed)

    def _loses(self, result: dict[str, Any] | None) -> bool:
        """Return whether the job has failed because it lost nodes, and can continue with fewer ranks on the others."""
        ranges = self._asked.elastic
        lost = frozenset((result or {}).get("lost_nodes", ()))
        failed = result is not None and result["status"] == "failed" and not self._options.rehearsed
        if not failed or not ranges or not lost or disk.newest_complete(self.run_dir) < 0 or self._backend is None:
            return False
        cluster = self._backend.cluster().without(lost)
        before = {role: int(self._job.job.spec.roles[role].world_size) for role in ranges}
        sizes = self._asked.largest(cluster)
        fewer = sizes != before and all(sizes[role] <= before[role] for role in ranges)
        if not fewer or not self._asked.fits(sizes, cluster):
            return False
        told = ", ".join(f"{role} {before[role]} → {size}" for role, size in sizes.items() if size != before[role])
        self._say(f"{', '.join(sorted(lost))} lost: {told}, from the newest snapshot on disk")
        self._lost |= lost
        return True


def watchers(selection: Selection) -> JobPlugins:
    """Return the observers of a job that run beside the user."""
    return instances(each for each in selection.observers if each.cls.side == "driver")


def stop_job(run_dir: Path, reason: str) -> None:
    """Return when the master has the request, or the job has ended. A master may be about to restart."""
    with ControlClient(run_dir, ANSWER_S) as client:
        while LivingRun(run_dir).result() is None:
            try:
                client.stop(reason)
                return
            except MasterGoneError:
                time.sleep(0.1)


class _Background(RunHandle):
    """A job that a second driver owns, in a session of its own."""

    def __init__(self, run_dir: Path, owner: subprocess.Popen[bytes], log: Path, before: Any) -> None:
        super().__init__(run_dir)
        self._run, self._process, self._log, self._before = LivingRun(run_dir), owner, log, before

    def status(self) -> JobStatus | None:
        return self._run.status()

    def stop(self, reason: str) -> None:
        stop_job(self.run_dir, reason)

    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        self._process.wait()
        return self.result()

    def result(self) -> dict[str, Any] | None:
        result = self._run.result()
        return None if result == self._before[0] else result

    def leave(self) -> None:
        while self._process.poll() is None and self.result() is None:
            # A job of this name that lived before is not ours: the owner will refuse, and end.
            status = self._run.status() if self._run.control() != self._before[1] else None
            if status is not None and status.state == "running":
                with suppress(OSError):
                    self._log.replace(self.run_dir / LOGS_DIR / "driver.log")
                return
            time.sleep(0.2)
        code = self._process.wait()
        sys.stderr.write(self._log.read_text())
        self._log.unlink(missing_ok=True)
        if self.result() is None:
            raise SystemExit(code)


def in_background(job: Prepared, run_dir: Path, options: Any, say: Say) -> RunHandle:
    """Start a second driver in a session of its own, because what the backend starts must outlive this process."""
    if not isinstance(job.source, Path):
        what = "a job that is no file cannot go on without this process on a Ray that this process starts"
        raise JobFileError(what, remedy="give the address of a Ray that is there, or use the backend local")
    command = [sys.executable, "-P", "-m", "rolemesh.cli", "run", str(job.source), *job.overrides]
    command += ["--runs-dir", str(run_dir.parent)]
    if options.resume is not None:
        command += ["--resume", options.resume]
    if job.engine is not None:
        command += ["--engine", job.engine]
    if job.admit is not None:
        command.append(job.admit.argument)
    if options.trust_pickles:
        command.append(TRUST_FLAG)
    run = LivingRun(run_dir)
    before = run.result(), run.control()
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # One of its own: of two that are started with one name, one is refused, and says so in it.
    descriptor, log = tempfile.mkstemp(".log", f".{run_dir.name}.driver-", run_dir.parent)
    with open(descriptor, "wb") as out:
        owner = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    return _Background(run_dir, owner, Path(log), before)
