"""``ray job submit`` to a Ray with a dashboard: the driver runs on the cluster, as an entry point of Ray's."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Make = Callable[..., Job]
RAY = (sys.executable, "-m", "ray.scripts.scripts")
RUN = ("--", sys.executable, "-m", "rolemesh.cli", "run", "job.yaml", "--address", "auto")
ENDLESS = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Head:
    """A Ray of one node with a dashboard, which asks for a token."""

    def __init__(self, log: Path) -> None:
        ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
        self.dashboard = f"http://127.0.0.1:{ports['dashboard-port']}"
        # Another Ray on this machine has the usual port of the agent that starts entry points.
        ports["dashboard-agent-listen-port"] = free_port()
        self.env = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        start = ("start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats")
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*RAY, *start, *(f"--{name}={port}" for name, port in ports.items())],
                stdout=out,
                stderr=out,
                env=self.env,
            )
        self.log = log

    def command(self, verb: str, *args: str) -> list[str]:
        return [*RAY, "job", verb, "--address", self.dashboard, *args]

    def ask(self, verb: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = self.command(verb, *args)
        return subprocess.run(command, cwd=cwd, env=self.env, capture_output=True, text=True, check=False)

    def ready(self) -> bool:
        """Whether it starts entry points: the agent that does is up last."""
        assert self.process.poll() is None, self.log.read_text()
        return self.ask("submit", "--", "true").returncode == 0


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    running = Head(tmp_path_factory.mktemp("head") / "ray.log")
    try:
        until(running.ready, "Ray takes jobs")
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.process.wait()


def where(job: Job) -> tuple[str, str]:
    """The run's folder, on what would be a shared file system: the entry point's own folder is Ray's to remove."""
    return "--runs-dir", str(job.folder / "runs")


@pytest.mark.soak
def test_a_submitted_job_runs_on_the_cluster_from_an_uploaded_folder(make_job: Make, head: Head) -> None:
    job = make_job()
    done = head.ask("submit", "--working-dir", ".", *RUN, *where(job), cwd=job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 steps" in done.stdout
    assert job.result()["status"] == "done"


@pytest.mark.soak
def test_a_submitted_job_outlives_its_driver_and_stopping_the_submission_interrupts_it(
    make_job: Make, head: Head
) -> None:
    job = make_job()
    arguments = ("--submission-id", "gone", "--working-dir", ".", *RUN, *where(job), *ENDLESS)
    with subprocess.Popen(head.command("submit", *arguments), cwd=job.folder, env=head.env) as client:
        seen = job.running(3)
        client.kill()
    later = job.running(seen.committed + 20)
    assert later.master_pid == seen.master_pid
    assert head.ask("stop", "gone").returncode == 0
    assert job.result()["message"] == "interrupted by Ctrl-C", "the driver has asked for it, not only died"


@pytest.mark.soak
def test_a_detached_job_outlives_its_entry_point(make_job: Make, head: Head) -> None:
    job = make_job()
    done = head.ask("submit", "--working-dir", ".", *RUN, *where(job), "--detach", *ENDLESS, cwd=job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = job.running(3)
    job.running(seen.committed + 20)
    stopped = job.cli("stop", "squares")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert job.result()["status"] == "interrupted"
