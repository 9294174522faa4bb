"""The events and metrics of a job: a slow observer or a full disk delays only them, and none is torn or lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import job_in
from tests.e2e.harness import ROLES, Job, leftovers
from tests.e2e.stranger import Stranger
from tests.waiting import until

OBSERVER = """
import os
import time
from rolemesh import Observer, hookimpl


class Plugin(Observer):
    @hookimpl
    def steps_finished(self, metrics):
        {body}

    @hookimpl
    def job_ended(self, result):
        with open(os.path.join("{folder}", "told"), "a") as file:
            print("ended", file=file)
"""


def logs_of(job: Job) -> int:
    """Bytes of the send logs in shared memory: what ranks keep because nobody has said that it is published."""
    (job_id,) = job.ids()
    blocks = 0
    for path in Path("/dev/shm").glob(f"*{job_id}*/**/log-*"):
        with contextlib.suppress(FileNotFoundError):  # it has just been let go
            blocks += path.stat().st_blocks
    return blocks * 512


@contextmanager
def watched_by(tmp_path: Path, body: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    job = job_in(tmp_path / "watched", "watched", extra="observers: [{use: odd}]\n" + extra)
    Stranger(job.folder).install("rolemesh-odd", "observers", "odd", OBSERVER.format(body=body, folder=tmp_path))
    path = os.pathsep.join(filter(None, (str(job.folder / "site"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    try:
        yield job
    finally:
        for process in job.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        until(lambda: not leftovers(job.ids()), "nothing is left of the job")


@pytest.mark.soak
def test_a_slow_observer_costs_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    body = f"[time.sleep(0.05) for line in metrics if os.path.exists({str(slow)!r})]"
    extra = "failover: [{use: process}]\nengine: {options: {snapshots: {every: 1, persist_every: 100000}}}\n"
    with watched_by(tmp_path, body, extra, monkeypatch) as job:
        chatty = ROLES.replace("self.ctx.count(", 'self.ctx.record(text="x" * 10_000)\n        self.ctx.count(')
        (job.folder / "roles.py").write_text(chatty)
        process = job.start("steps=100000")
        job.running(200)
        before = logs_of(job)
        job.running(1000)
        # 800 steps' lines of two ranks are 16 MB; if the observer held them they would stay, 1024 steps of them. A busy
        # machine writes them some time after the ranks have gone on.
        until(lambda: logs_of(job) - before < 8 << 20, "the lines are published while the observer is slow")
        slow.unlink()
        assert job.cli("stop", "watched").returncode == 0
        process.wait()

    assert (tmp_path / "told").read_text().endswith("ended\n")


@pytest.mark.more
def test_an_observer_that_hangs_for_ever_keeps_no_job_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_by(tmp_path, "time.sleep(1e6)", "", monkeypatch) as job:
        done = job.run()
        assert done.returncode == 0, done.stderr
        log = (job.run_dir / "logs" / "master.log").read_text()
    assert "observer odd#0 (rolemesh-odd) has not returned from its hook 'steps_finished'" in log
    assert "it has not been told of" in log
    assert "and the job's end" in log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB: several times as much as the lines that may wait for room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_holds_what_is_told_and_loses_no_line(tmp_path: Path, small_disk: Path) -> None:
    job = job_in(
        tmp_path / "full", "full", extra=f"engine: {{options: {{state: sqlite:///{tmp_path}/state.sqlite}}}}\n"
    )
    (job.folder / "runs").symlink_to(small_disk, target_is_directory=True)
    process = job.start("steps=100000", "metrics.every=1")
    try:
        job.running(20)
        with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        held = until(lambda: (s := job.status()) and any("No space" in w for w in s.warnings) and s, "a warning")
        far = job.running(held.committed + 50).committed
        assert job.cli("stop", "full", "--no-wait").returncode == 0
        until(lambda: (s := job.status()) and s.state != "running", "it stops")
        (small_disk / "filler").unlink()
        process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
    assert process.stdout is not None
    process.stdout.close()
    steps = [line["step"] for line in job.metrics()]
    assert steps == list(range(len(steps)))
    assert steps[-1] >= far
    assert [event["seq"] for event in job.events()] == list(range(1, len(job.events()) + 1))
    until(lambda: not leftovers(job.ids()), "nothing is left of the job")
