"""A run's folder belongs to one job at a time: what counts is who lives there, not who answers in time."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rolemesh.errors import NameInUseError
from rolemesh_durable.control.claim import claim
from rolemesh_durable.control.living import LivingRun, answers
from rolemesh_durable.journal.sqlite import SQLITE_FILE, SqliteStore
from rolemesh_runtime.lock import RunLock, hold, is_held, lock_file


def test_a_folder_whose_job_does_not_answer_is_not_taken_from_it(start_master: Any) -> None:
    master = start_master()
    lock = hold(master.run_dir)
    master.answers.clear()
    with pytest.raises(NameInUseError, match="pid 4242"), claim(master.run_dir):
        pass
    assert (master.run_dir / "control.json").exists()
    assert LivingRun(master.run_dir).alive()
    assert lock is not None
    lock.close()
    master.answers.set()
    with pytest.raises(NameInUseError), claim(master.run_dir, answers=answers):  # one that answers lives, too
        pass


def test_a_job_whose_processes_are_gone_frees_its_folder(start_master: Any) -> None:
    master = start_master()
    master.die()
    lock = hold(master.run_dir)
    assert lock is not None
    assert is_held(master.run_dir)
    lock.close()
    assert not is_held(master.run_dir)
    with claim(master.run_dir) as (earlier, _):
        assert earlier is not None
        assert (earlier / "control.json").exists()
        assert not (master.run_dir / "control.json").exists()


def test_a_folder_that_the_backend_knows_is_not_taken(start_master: Any) -> None:
    master = start_master()
    master.die()
    with pytest.raises(NameInUseError), claim(master.run_dir, lambda: True):
        pass
    assert (master.run_dir / "control.json").exists()


def test_the_driver_hands_the_jobs_lock_over_without_a_gap(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "j"
    with claim(run_dir) as (_, lock):
        with pytest.raises(NameInUseError, match="being started"), claim(run_dir):
            pass
        supervisor = subprocess.Popen(["sleep", "600"], pass_fds=(lock,))
    try:
        assert is_held(run_dir)
        with pytest.raises(NameInUseError, match="is running"), claim(run_dir):
            pass
    finally:
        supervisor.kill()
        supervisor.wait()
    with claim(run_dir):
        pass


def test_a_job_that_has_ended_is_waited_for_until_its_last_process_has_left(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    master.end()
    lock = hold(master.run_dir)
    assert lock is not None
    threading.Timer(1.5, lock.close).start()
    with claim(master.run_dir) as (earlier, _):
        assert earlier is not None
    assert "waiting for the last processes" in capsys.readouterr().err


def test_looking_whether_a_folder_is_held_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    run_dir, over = tmp_path / "j", threading.Event()
    RunLock(lock_file(run_dir)).close()

    def look() -> None:
        while not over.is_set():
            is_held(run_dir)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with RunLock(lock_file(run_dir)) as lock:
                assert lock.claim(20)
                assert lock.share(20)
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def test_without_locks_the_masters_answer_decides_and_that_is_said(
    start_master: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file system here refuses locks, so the system call is replaced."""

    def refused(fd: int, kind: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "nothing of the kind")

    monkeypatch.setattr("fcntl.flock", refused)
    master = start_master()
    with pytest.raises(NameInUseError), claim(master.run_dir, answers=answers):
        pass
    master.end()
    with claim(master.run_dir, answers=answers) as (earlier, lock):
        assert earlier is not None
        assert lock == -1
    assert hold(master.run_dir) is None
    assert "file system without locks (Operation not supported)" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["results", "result.json", "empty", "file", "link", "dangling"])
def test_folders_that_are_no_runs_stay_in_place(tmp_path: Path, what: str) -> None:
    place = tmp_path / "runs" / "train"
    other = tmp_path / "elsewhere"
    place.parent.mkdir()
    if what == "file":
        place.write_text("mine")
    elif what in ("link", "dangling"):
        if what == "link":
            other.mkdir()
        place.symlink_to(other)
    else:
        place.mkdir()
        if what != "empty":
            (place / ("last.pt" if what == "results" else what)).write_text("{}")
    before = sorted(str(path) for path in tmp_path.rglob("*") if ".alive" not in path.name)
    with pytest.raises(NameInUseError, match="was not made by rolemesh") as refused, claim(place):
        pass
    assert "--runs-dir" in str(refused.value.remedy)
    found = sorted(str(p) for p in tmp_path.rglob("*") if not p.name.endswith((".alive", ".lock")))
    assert found == before


def test_claims_of_a_run_on_others_move_with_it(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "train"
    with claim(place):
        (place / "last.pt").write_text("5")
    with claim(place) as (earlier, _):
        assert earlier is not None
        assert (earlier / "last.pt").read_text() == "5"
        assert not (place / "last.pt").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_cannot_take_a_lock_of_a_run_but_sees_that_it_lives(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "j"
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.name.startswith(("pytest", "popen", "test_")):
            folder.chmod(0o755)
    with claim(run_dir):
        pass
    SqliteStore("sqlite", run_dir, "id").prepare()
    files = lock_file(run_dir), run_dir / SQLITE_FILE
    with RunLock(files[0]) as lock:
        assert lock.share()
        os.seteuid(65534)
        try:
            assert is_held(run_dir)
            for path in files:
                with pytest.raises(PermissionError):
                    path.open("rb")
        finally:
            os.seteuid(0)
    os.seteuid(65534)
    try:
        assert not is_held(run_dir)
    finally:
        os.seteuid(0)


FOREIGN = """
import os, sys
from rolemesh.cli import main
assert main(["status", "--runs-dir", sys.argv[1]]) == 0  # to import all: others may not see the packages
os.setuid(65534)
sys.exit(main(["status"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_other_or_unreadable_files_in_the_runs_folder_do_not_stop_status(start_master: Any, runs: Path) -> None:
    start_master("grpo").end()
    shutil.copytree(runs / "grpo", runs.parent / "warm" / "grpo")
    for name in ("grpo/result.json", "grpo/run.json"):
        (runs / name).chmod(0o644)
    (runs / "secret").mkdir(mode=0o700)
    (runs / "secret" / "run.json").write_text("{}")
    (runs / "closed").mkdir()
    (runs / "closed" / "result.json").write_text("{}")
    (runs / "closed" / "result.json").chmod(0o600)
    (runs / "pipe").mkdir()
    (runs / "pipe" / "run.json").write_text(json.dumps({"name": "pipe"}))
    os.mkfifo(runs / "pipe" / "result.json")
    os.mkfifo(runs / "fifo")
    (runs / "torn").mkdir()
    (runs / "torn" / "result.json").write_text('{"status": "do')
    (runs / "loop").symlink_to(runs / "loop")
    for folder in [runs, *runs.parents][:-1]:
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest", "popen", "runs", "test_")):
            folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, str(runs.parent / "warm")],
        env=os.environ | {"ROLEMESH_RUNS": str(runs), "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [row.split() for row in done.stdout.rpartition("job ")[2].splitlines()[1:]]
    states = {row[0]: row[1] for row in rows}
    assert states["grpo"] == "done"
    assert states["closed"] == states["pipe"] == states["torn"] == "unreadable"
    assert states.keys() == {"grpo", "closed", "pipe", "torn"}
