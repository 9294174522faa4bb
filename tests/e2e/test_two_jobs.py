"""A second job of a name does not get the folder of the first one, however long that has not answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from tests.e2e.harness import Job

from rolemesh_runtime.lock import is_held


@pytest.mark.soak
def test_the_folder_of_a_job_whose_processes_are_all_stopped_stays_its_own(make_job: Callable[..., Job]) -> None:
    job = make_job(extra="failover: [{use: process}]\n")
    process = job.start("steps=100", "roles.work.options.kwargs.sleep=0.01", "engine.options.lease_s=60")
    status = job.running()
    supervisor = psutil.Process(status.master_pid).parent()
    assert supervisor is not None
    stopped = [supervisor.pid, status.master_pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert is_held(job.run_dir)
        for flags in ((), ("--engine=inline",)):
            second = job.cli("run", "job.yaml", *(flags or job.backend))
            assert second.returncode == 2, second.stdout
            assert f"is running (pid {status.master_pid})" in second.stderr
        assert not list(job.run_dir.parent.glob(".earlier/*"))
    finally:
        for pid in reversed(stopped):  # the supervisor last: it may start another master
            os.kill(pid, signal.SIGCONT)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert job.result()["status"] == "done"

    assert job.run("steps=2").returncode == 0  # it waits for the first one's last process
    assert len(list(job.run_dir.parent.glob(".earlier/*"))) == 1
