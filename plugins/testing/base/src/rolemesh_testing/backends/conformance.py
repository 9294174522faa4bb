"""Conformance of a backend: the kit runs a real job on it, kills processes, and checks that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from pydantic import BaseModel

from rolemesh.api.observer import JobStatus
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_durable.api.jobs import ControlClient, LivingRun
from rolemesh_durable.api.testing import DurableEngine
from rolemesh_durable.backends import Backend
from rolemesh_runtime.lock import is_held, lock_file
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.engines.job import VARIABLE, summing
from rolemesh_testing.leftovers import marking, outliving

__all__ = ["BackendConformance"]

Running = Callable[..., "_Live"]


class _Live:
    """A running job, and a thread that waits for its end."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._ended: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._ended.append(handle.wait()), daemon=True)
        self._thread.start()

    def until(self, what: str, timeout_s: float, true: Callable[[JobStatus], bool]) -> JobStatus:
        """Wait until the status fulfils a condition, and return it."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            status = self.handle.status()
            if status is not None and true(status):
                return status  # type: ignore[no-any-return]
            assert self._thread.is_alive(), f"the job has ended before {what}: {self._ended}"
            time.sleep(0.05)
        raise AssertionError(f"{what}: not within {timeout_s:g} s")

    def end(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the job's end, and return its result."""
        self._thread.join(timeout_s)
        assert self._ended, f"the job has not ended within {timeout_s:g} s"
        assert self._ended[0] is not None, "the job has died without a result"
        return dict(self._ended[0])


class BackendConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. The engine ``durable`` runs the jobs.

    The tests kill processes by their pids, so the backend's nodes must be on this machine.
    """

    kind = "backends"
    timeout_s: ClassVar[float] = 120.0

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def running(self, checked_options: BaseModel, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
        """``running(steps=…, pause_s=…)`` starts a job on the backend."""
        live: list[_Live] = []
        chosen = {name: str(value) for name, value in self.options.items()} | {"backend": str(self.plugin)}
        options = DurableEngine.options_for(chosen)(backend=str(self.plugin), **self.options)

        def begin(**job: Any) -> _Live:
            checked = summing(f"conformance-{len(live)}", tmp_path, **job).set(failover=[]).validate("durable")
            run_dir = tmp_path / "runs" / checked.job.spec.name
            start = partial(DurableEngine(options).start, checked, run_dir, say=lambda text: None)
            live.append(_Live(needed(request, "no job can be started there", start)))
            return live[-1]

        yield begin
        for each in live:
            if each.handle.result() is None and each.handle.status() is not None:
                each.handle.stop("the test is over")
            each.end(self.timeout_s)
            each.handle.close()

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """The options also pass checks beyond the model: a backend can be made with them."""
        cls(options).close()

    # --------------------------------------------------------------------------------------------------------- tests

    def test_its_nodes_can_be_told_apart_and_have_something(
        self, cls: type[Backend], checked_options: BaseModel
    ) -> None:
        """Every call returns the same nodes in the same order, with the values that placement strategies need. Before
        `start` there is no master, and no job of any name.
        """
        backend = cls(checked_options)
        try:
            view = backend.cluster()
            names = [node.id for node in view.nodes]
            assert names
            assert len(set(names)) == len(names)
            assert all(node.cpu > 0 and node.gpu >= 0 and node.host for node in view.nodes)
            assert [node.id for node in backend.cluster().nodes] == names
            expected = cls.expected(checked_options)
            assert expected is None or [node.id for node in expected.nodes] == names
            assert not backend.alive(), "alive() is true before start()"
            assert not backend.knows("no-such-job"), "knows() is true for a job that never was"
        finally:
            backend.close()

    def test_a_lost_node_is_not_used_again(self, cls: type[Backend], checked_options: BaseModel) -> None:
        """A job that goes on after the loss of a node gives its name to the next backend."""
        backend = cls(checked_options)
        names = [node.id for node in backend.cluster().nodes]
        backend.close()
        after = cls(checked_options, names[:1])
        try:
            assert names[0] not in [node.id for node in after.cluster().nodes]
        finally:
            after.close()

    def test_its_name_is_the_one_that_a_user_selects(self, cls: type[Backend]) -> None:
        """The journal and ``run.json`` contain the backend's name."""
        assert cls.name == self.plugin

    def test_a_job_runs_there_and_leaves_nothing(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        """`start` returns when the master answers. The job's processes have the variables of the command, and hold the
        run folder's lock. After `close` has returned, none of the backend's processes is alive.
        """
        monkeypatch.setenv(VARIABLE, "of the command")
        with marking() as mark:
            live = running(steps=100_000, pause_s=0.02)
            assert live.handle.status() is not None, "start() has returned before the master answers"
            status = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        assert is_held(live.handle.run_dir), "no process of the job holds the lock of the run's folder"
        assert status.master_pid > 0
        pids = {status.master_pid, *(agent.pid for agent in status.agents), *(rank.pid for rank in status.ranks)}
        born = {pid: psutil.Process(pid).create_time() for pid in pids}
        live.handle.stop("the test has seen enough")
        assert live.end(self.timeout_s)["status"] == "interrupted"
        live.handle.close()
        left = _left(born)
        assert not left, f"processes {left} live on"
        helpers = outliving(mark)
        assert not helpers, f"left after close(): {helpers}"
        first = json.loads((live.handle.run_dir / METRICS_FILE).read_text().splitlines()[0])
        assert first["records"]["variable"] == "of the command"

    def test_a_master_that_is_killed_is_there_again(self, running: Running) -> None:
        """A new master goes on with the same agents and ranks. Others, too, hold the lock of the run's folder."""
        live = running(steps=400, pause_s=0.02)
        before = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        holders = _holders(lock_file(live.handle.run_dir))
        assert holders - {before.master_pid}, "the master alone holds the lock of the run's folder"
        os.kill(before.master_pid, signal.SIGKILL)
        after = live.until("a second master", self.timeout_s, lambda status: status.epoch > before.epoch)
        assert after.master_pid != before.master_pid
        going = live.until("its steps go on", self.timeout_s, lambda status: status.committed > before.committed + 5)
        assert [agent.pid for agent in going.agents] == [agent.pid for agent in before.agents]
        assert [rank.pid for rank in going.ranks] == [rank.pid for rank in before.ranks]
        assert [rank.generation for rank in going.ranks] == [rank.generation for rank in before.ranks]

    def test_an_agent_that_is_killed_has_a_successor_and_no_rank_restarts(self, running: Running) -> None:
        """The backend reports the loss at once, before the master notices it. The master starts another agent on
        the same node, which adopts the ranks.
        """
        live = running(steps=100_000, pause_s=0.02)
        before = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        os.kill(before.agents[0].pid, signal.SIGKILL)
        known = (0, before.agents[0].pid)
        live.until("a second agent", self.timeout_s, lambda status: status.agents[0].pid not in known)
        going = live.until("its steps go on", self.timeout_s, lambda status: status.committed > before.committed + 50)
        assert [(rank.pid, rank.generation) for rank in going.ranks] == [
            (rank.pid, rank.generation) for rank in before.ranks
        ]
        events = map(json.loads, (live.handle.run_dir / EVENTS_FILE).read_text().splitlines())
        whys = [event["data"]["why"] for event in events if event["kind"] == "agent_died"]
        assert "heard" not in whys[0], f"the backend did not report the end of the agent's process: {whys[0]}"

    def test_a_killed_starter_leaves_nothing_and_takes_no_detached_job_along(
        self, cls: type[Backend], checked_options: BaseModel, tmp_path: Path
    ) -> None:
        """The job of a starter that is killed ends with its lease, and none of its processes is alive then. A detached
        job goes on.
        """
        which = [False, True] if cls.outlives(checked_options) else [False]
        starters = [_Starter(self, tmp_path, detached) for detached in which]
        try:
            for each in starters:
                each.runs(self.timeout_s)
            reached = [each.kill() for each in starters]
            for each, before in zip(starters[1:], reached[1:], strict=True):
                each.gets_beyond(before + 20, self.timeout_s)
            starters[0].is_gone(LEASE_S + self.timeout_s)
        finally:
            left = [name for each in starters for name in each.end()]
        assert not left, f"a job's processes live on: {left}"


LEASE_S = 5.0
"""Seconds without its starter after which the job of `test_a_killed_starter_leaves_nothing…` ends."""


class _Starter:
    """A process that starts a job, and waits for its end unless it is detached."""

    def __init__(self, test: BackendConformance, base: Path, detached: bool) -> None:
        name = "detached" if detached else "owned"
        self._run, self._ready = LivingRun(base / "runs" / name), base / f"{name}.ready"
        told = {"backend": test.plugin, "options": test.options, "base": str(base), "name": name, "detached": detached}
        code = (
            f"import sys; sys.path[:] = {[*filter(None, sys.path)]!r}; from {__name__} import starts; starts({told!r})"
        )
        with marking() as self._mark:
            self._process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)

    def runs(self, timeout_s: float) -> None:
        """Wait until the job runs, and the starter has left a detached one."""
        until = time.monotonic() + timeout_s
        while not self._ready.exists():
            assert self._process.poll() is None, "the process that starts the job has ended"
            assert time.monotonic() < until, "the process that starts the job gets no further"
            time.sleep(0.05)
        self.gets_beyond(0, timeout_s)

    def kill(self) -> int:
        """Send SIGKILL to the starter, and return the step that the job has reached."""
        status = self._run.status()
        self._process.kill()
        self._process.wait()
        return status.committed if status is not None else 0

    def gets_beyond(self, step: int, timeout_s: float) -> None:
        """Wait until the job has committed more than `step` steps."""
        until = time.monotonic() + timeout_s
        while (status := self._run.status()) is None or status.committed <= step:
            assert self._run.result() is None, f"the job has ended: {self._run.result()}"
            assert time.monotonic() < until, f"the job {self._run.path.name} does not get beyond step {step}"
            time.sleep(0.05)

    def is_gone(self, timeout_s: float) -> None:
        """Wait until the job has a result, and none of its processes holds its lock."""
        until = time.monotonic() + timeout_s
        while self._run.result() is None or is_held(self._run.path):
            assert time.monotonic() < until, f"the job {self._run.path.name} lives on without its starter"
            time.sleep(0.05)

    def end(self) -> list[str]:
        """End starter and job, and return the processes that outlive them."""
        self._process.kill()
        self._process.wait()
        with suppress(RolemeshError), ControlClient(self._run.path) as client:
            while self._run.result() is None and is_held(self._run.path):
                client.stop("the test is over")
                time.sleep(0.1)
        return outliving(self._mark)


def starts(told: dict[str, Any]) -> None:
    """Start the job of a `_Starter` in this process."""
    chosen = {name: str(value) for name, value in told["options"].items()} | {"backend": told["backend"]}
    options = DurableEngine.options_for(chosen)(backend=told["backend"], **told["options"])
    job = summing(told["name"], Path(told["base"]), steps=100_000, pause_s=0.02)
    checked = job.set(engine={"options": {"lease_s": LEASE_S}}).validate("durable")
    run_dir = Path(told["base"], "runs", told["name"])
    handle = DurableEngine(options).start(checked, run_dir, detached=told["detached"], say=lambda text: None)
    if told["detached"]:
        handle.leave()
        handle.close()
    Path(told["base"], f"{told['name']}.ready").touch()
    handle.wait()


def _holders(lock: Path) -> set[int]:
    """Return the processes that have this file open."""
    found = set[int]()
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has been closed meanwhile, or is another user's
            if os.readlink(each) == str(lock):
                found.add(int(each.parts[2]))
    return found


def _left(born: dict[int, float]) -> list[int]:
    """Return those of these processes that are still alive shortly after SIGTERM or SIGKILL."""
    until = time.monotonic() + 10
    while (left := [pid for pid, when in born.items() if _alive(pid, when)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
