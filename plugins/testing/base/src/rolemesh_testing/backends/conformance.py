"""Conformance of a backend: the kit runs a real job on it, kills processes, and checks that nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from pydantic import BaseModel

from rolemesh.api.observer import JobStatus
from rolemesh_durable.api.testing import DurableEngine
from rolemesh_durable.backends import Backend
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.engines.job import summing

__all__ = ["BackendConformance"]

Running = Callable[..., "_Live"]


class _Live:
    """A running job, and a thread that waits for its end."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._ended: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._ended.append(handle.wait()))
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
        """Every call returns the same nodes in the same order, with the values that placement strategies need."""
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
        finally:
            backend.close()

    def test_its_name_is_the_one_that_a_user_selects(self, cls: type[Backend]) -> None:
        """The journal and ``run.json`` contain the backend's name."""
        assert cls.name == self.plugin

    def test_a_job_runs_there_and_leaves_nothing(self, running: Running) -> None:
        """After `close` has returned, none of the backend's processes is alive."""
        live = running(steps=200, pause_s=0.02)
        status = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        assert status.master_pid > 0
        pids = {status.master_pid, *(agent.pid for agent in status.agents), *(rank.pid for rank in status.ranks)}
        born = {pid: psutil.Process(pid).create_time() for pid in pids}
        live.handle.stop("the test has seen enough")
        assert live.end(self.timeout_s)["status"] == "interrupted"
        live.handle.close()
        left = _left(born)
        assert not left, f"processes {left} live on"

    def test_a_master_that_is_killed_is_there_again(self, running: Running) -> None:
        """A new master goes on with the same agents and ranks."""
        live = running(steps=400, pause_s=0.02)
        before = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        os.kill(before.master_pid, signal.SIGKILL)
        after = live.until("a second master", self.timeout_s, lambda status: status.epoch > before.epoch)
        assert after.master_pid != before.master_pid
        going = live.until("its steps go on", self.timeout_s, lambda status: status.committed > before.committed + 5)
        assert [rank.pid for rank in going.ranks] == [rank.pid for rank in before.ranks]
        assert [rank.generation for rank in going.ranks] == [rank.generation for rank in before.ranks]

    def test_an_agent_that_is_killed_has_a_successor_and_no_rank_restarts(self, running: Running) -> None:
        """The master notices the loss at once. It starts another agent on the same node, which adopts the ranks."""
        live = running(steps=100_000, pause_s=0.02)
        before = live.until("its ranks run", self.timeout_s, lambda status: status.committed >= 1)
        os.kill(before.agents[0].pid, signal.SIGKILL)
        known = (0, before.agents[0].pid)
        live.until("a second agent", self.timeout_s, lambda status: status.agents[0].pid not in known)
        going = live.until("its steps go on", self.timeout_s, lambda status: status.committed > before.committed + 50)
        assert [(rank.pid, rank.generation) for rank in going.ranks] == [
            (rank.pid, rank.generation) for rank in before.ranks
        ]


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
