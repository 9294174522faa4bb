"""The journal of real jobs: in PostgreSQL, with a server that dies, and damaged, which is refused as a whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import job_in
from tests.e2e.harness import Job, whole_lines
from tests.e2e.ladder import ENDLESS, LADDER, SLOW, ended_well, launched, of_kind, pids, recovered
from tests.waiting import until

from rolemesh_durable.journal.sqlite import SQLITE_FILE

Make = Callable[..., Job]


# ---------------------------------------------------------------------------------------------------------- PostgreSQL


def killed(server: Any) -> None:
    """SIGKILL the database's server with all its processes."""
    parent = psutil.Process(server.get_pid())
    processes = [parent, *parent.children(recursive=True)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, 10)


@pytest.mark.more
def test_a_job_with_its_journal_in_postgresql_survives_its_masters(make_job: Make, postgres: str) -> None:
    job = make_job(extra=LADDER + f'engine: {{options: {{state: "{postgres}"}}}}\n')
    process = job.start(*SLOW)
    before = job.running(10)
    for times in (1, 2):
        os.kill(job.running().master_pid, signal.SIGKILL)
        until(lambda times=times: len(of_kind(job, "master_recovered")) == times, "another master")  # type: ignore[misc]
    after = job.running()
    assert (after.epoch, pids(after)) == (3, pids(before))
    os.kill(after.master_pid, signal.SIGKILL)
    os.kill(pids(after)["work/1"], signal.SIGKILL)
    recovered(job)
    ended_well(job, process)
    assert launched(job) == [["work/1"]]
    assert not (job.run_dir / SQLITE_FILE).exists()
    shown = [json.loads(line) for line in job.cli("events", "squares", "--json").stdout.splitlines()]
    assert shown == job.events()
    assert [event["seq"] for event in shown] == list(range(1, len(shown) + 1))


def test_a_job_waits_for_the_server_of_its_journal_says_so_and_goes_on_when_it_is_back(
    make_job: Make, postgres: str, postgres_server: Any
) -> None:
    job = make_job(extra=LADDER + f'engine: {{options: {{state: "{postgres}"}}}}\n')
    process = job.start(*SLOW)
    before = job.running(10)
    killed(postgres_server)
    waiting = until(lambda: (job.status() or before).warnings, "the master has noticed")
    assert "the journal cannot be reached" in waiting[0]
    os.kill(before.master_pid, signal.SIGKILL)
    next_one = lambda: (status := job.status()) and status.state == "recovering" and status.warnings  # noqa: E731
    until(next_one, "the next master waits as well")
    postgres_server.ensure_postgres_running()
    until(lambda: of_kind(job, "master_recovered"), "the next master has taken over")
    assert pids(job.running()) == pids(before)
    ended_well(job, process)
    assert launched(job) == []
    assert [event["seq"] for event in job.events()] == list(range(1, len(job.events()) + 1))


# -------------------------------------------------------------------------------------------------------------- damage


def flipped(folder: Path) -> None:
    """A bit of one event's text, in the database and in what is still in its log."""
    for path in folder.glob(f"{SQLITE_FILE}*"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"job_running", b"job_runnimg"))


def zeroed(folder: Path) -> None:
    path = folder / SQLITE_FILE
    path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096))


def torn(folder: Path) -> None:
    os.truncate(folder / SQLITE_FILE, (folder / SQLITE_FILE).stat().st_size // 2)


def headless(folder: Path) -> None:
    path = folder / SQLITE_FILE
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def emptied(folder: Path) -> None:
    os.truncate(folder / SQLITE_FILE, 0)


def short(folder: Path) -> None:
    """Its last rows are not there."""
    connection = sqlite3.connect(folder / SQLITE_FILE, isolation_level=None)
    connection.execute("delete from rolemesh_records where seq > 7")
    connection.close()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of a job that has ended."""
    job = job_in(tmp_path_factory.mktemp("ended"), "squares", extra=LADDER)
    assert job.run("steps=10").returncode == 0
    return job.folder / "runs"


@pytest.mark.parametrize(
    "damage",
    [flipped, *(pytest.param(one, marks=pytest.mark.soak) for one in (zeroed, torn, headless, emptied, short))],
)
def test_a_damaged_journal_is_not_shown_in_part(make_job: Make, ended: Path, damage: Callable[[Path], None]) -> None:
    job = make_job(extra=LADDER)
    shutil.copytree(ended, job.folder / "runs")
    (job.run_dir / "events.jsonl").unlink()  # what is in there is not asked of the journal
    damage(job.run_dir)
    shown = job.cli("events", "squares")
    assert shown.returncode == 1, shown.stdout
    assert shown.stdout == ""
    assert "journal" in shown.stderr
    assert SQLITE_FILE in shown.stderr
    assert "→" in shown.stderr
    assert "Traceback" not in shown.stderr


def set_back(folder: Path) -> None:
    """Set the journal back to a state that lacks its last, published events."""
    master = json.loads((folder / "control.json").read_text())["pid"]
    kept = {path: path.read_bytes() for path in folder.glob(f"{SQLITE_FILE}*") if not path.name.endswith("-shm")}
    newest = last_event(kept, folder.parent / "kept")
    os.kill(master, signal.SIGCONT)
    until(lambda: whole_lines(folder / "events.jsonl")[-1]["seq"] > newest, "more events")
    os.kill(master, signal.SIGSTOP)
    for path, data in kept.items():
        path.write_bytes(data)


def last_event(files: dict[Path, bytes], folder: Path) -> int:
    """Copy the journal's `files` to `folder` and return its last event, which may be unpublished."""
    folder.mkdir()
    for path, data in files.items():
        (folder / path.name).write_bytes(data)
    connection = sqlite3.connect(folder / SQLITE_FILE)
    [(newest,)] = connection.execute("select max(seq) from rolemesh_records")
    connection.close()
    return int(newest)


def removed(folder: Path) -> None:
    for path in folder.glob(f"{SQLITE_FILE}*"):
        path.unlink()


@pytest.mark.parametrize(
    "damage", [flipped, *(pytest.param(each, marks=pytest.mark.soak) for each in (set_back, removed))]
)
def test_a_master_does_not_go_on_from_a_damaged_journal_and_the_job_can_be_resumed(
    make_job: Make, damage: Callable[[Path], None]
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*ENDLESS)
    until(lambda: of_kind(job, "persisted") if job.running() else [], "a snapshot on disk")
    status = job.running()
    os.kill(status.master_pid, signal.SIGSTOP)
    damage(job.run_dir)
    told = job.events()
    os.kill(status.master_pid, signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 1, out
    assert "journal" in out
    assert "Traceback" not in out
    result = job.result()
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert "journal" in result["message"]
    assert job.events() == told
    resumed = job.run("--resume", "squares", "steps=200")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
