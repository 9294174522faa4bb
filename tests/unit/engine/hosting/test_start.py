"""Waiting for a job's first master: a slow one is waited for, a dead one is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rolemesh.errors import BackendError
from rolemesh.runs.run import CONTROL_FILE
from rolemesh_durable.hosting import start
from rolemesh_durable.hosting.start import await_master


class Clock:
    """Stands in for `time`: each sleep takes a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(start, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 60


def test_a_master_that_lives_has_as_long_as_the_job_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def dead() -> bool:
        if clock.now >= 540:
            (tmp_path / CONTROL_FILE).touch()
        return False

    await_master(tmp_path, dead, tmp_path / "master.log", 600)
    (tmp_path / CONTROL_FILE).unlink()
    with pytest.raises(BackendError, match="did not come up"):
        await_master(tmp_path, lambda: False, tmp_path / "master.log", 600)


def test_a_dead_master_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    (tmp_path / "master.log").write_text("ImportError: no such module")
    with pytest.raises(BackendError, match="no such module"):
        await_master(tmp_path, lambda: True, tmp_path / "master.log", 600)
    assert clock.now == 0


def test_the_error_names_the_full_disk_that_kept_the_master_from_starting(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        with pytest.raises(BackendError, match="the disk with the run's folder is full") as full:
            await_master(tmp_path, lambda: True, tmp_path / "master.log", 600)
        assert full.value.where == str(tmp_path)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
