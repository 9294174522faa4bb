"""A run that writes nothing, whatever the clock does, and ranks that have no record yet: the pages say so."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rolemesh_runtime.lock import RunLock, lock_file
from rolemesh_view import application
from rolemesh_view.guard import Access
from rolemesh_view.last_write import QUIET_S, LastWrite
from rolemesh_view.pages import PAGES
from rolemesh_view.viewed import Runs

from .test_server import write_run

LAUNCHED = {"number": 2, "at": 0.0, "ranks": [{"role": "sink", "rank": 0, "generation": 2, "resume": 5}]}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a run that a process keeps alive, and whose files are an hour old."""
    folder = write_run(tmp_path / "run", ended=False)
    add(folder, "job_running", {})
    lock = RunLock(lock_file(folder))
    assert lock.share()
    yield folder
    lock.close()


def add(folder: Path, kind: str, data: object) -> None:
    """Add an event, and make all files an hour old."""
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"seq": 99, "epoch": 1, "time": 1.79e9, "kind": kind, "data": data}) + "\n")
    for path in folder.rglob("*.jsonl"):
        stamp(path, path.stat().st_mtime - 3600)


def stamp(path: Path, time: float) -> None:
    """Set the time at which a file was written."""
    os.utime(path, (time, time))


@pytest.fixture
def client(run: Path) -> TestClient:
    return TestClient(
        application(Runs(run.parent), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )


@pytest.mark.parametrize("step_s", [-3600.0, 0.0, 3600.0])
def test_a_step_of_the_clock_makes_no_age_negative_or_large(run: Path, step_s: float) -> None:
    now = {"wall": 1e9, "monotonic": 50.0}
    for path in run.rglob("*.jsonl"):
        stamp(path, 1e9 - 500)
    files = LastWrite(run, wall=lambda: now["wall"], monotonic=lambda: now["monotonic"])
    assert files.age() == 500
    now["monotonic"] += 3
    now["wall"] += step_s + 3
    assert files.age() == 503, "nothing has changed"
    for number, name in enumerate(("record/sink-0/000000.jsonl", "record/source-1/000001.jsonl", "events.jsonl")):
        now["monotonic"] += 3
        now["wall"] += 3
        (run / name).write_text("more")
        stamp(run / name, 1e9 + step_s + 6 + 3 * number - 1)
        assert files.age() == 1, name
    now["monotonic"] += QUIET_S
    assert files.age() == QUIET_S + 1
    (run / "events.jsonl").write_text("again")
    stamp(run / "events.jsonl", now["wall"])
    now["monotonic"] += 3
    now["wall"] += step_s + 3
    assert 0 <= (files.age() or 0.0) <= 3, "the clock has stepped between the write and the look"


def test_a_write_in_the_future_is_as_old_as_the_first_look(run: Path) -> None:
    now = {"wall": 1e9, "monotonic": 50.0}
    for path in run.rglob("*.jsonl"):
        stamp(path, 1e9 + 500)
    files = LastWrite(run, wall=lambda: now["wall"], monotonic=lambda: now["monotonic"])
    assert files.age() == 0
    now["monotonic"] += QUIET_S
    assert files.age() == QUIET_S


@pytest.mark.parametrize("page", PAGES)
def test_each_page_of_a_living_job_says_that_nothing_has_been_written(run: Path, client: TestClient, page: str) -> None:
    text = client.get(f"/run/run/{page}").text
    assert "nothing has been written for 60 min: all processes may be stopped" in text
    assert f"rolemesh status {run}" in text


@pytest.mark.parametrize(("kind", "data"), [("recovery_launched", LAUNCHED), ("rank_done", {}), ("", {})])
def test_a_job_that_writes_or_whose_ranks_set_up_or_have_ended_is_not_called_silent(
    run: Path, client: TestClient, kind: str, data: object
) -> None:
    if kind:
        add(run, kind, data)
    else:
        os.utime(run / "record/source-1/000000.jsonl")
    assert "nothing has been written" not in client.get("/run/run/events").text


@pytest.mark.parametrize("page", ["flow", "time"])
def test_ranks_that_have_no_record_yet_are_shown_with_what_they_do(run: Path, client: TestClient, page: str) -> None:
    add(run, "job_started", {})
    up = {"role": "sink", "rank": 0, "generation": 0, "pid": 7, "node": "node"}
    for kind, said in (
        ("", "sink (1 rank) starts since 2026-09-21 14:13:20 UTC; source (2 ranks) starts since"),
        ("rank_up", "sink (1 rank) runs setup since 2026-09-21 14:13:20 UTC; source (2 ranks) starts since"),
        ("rank_ready", '<p id="beginnings" role="status">source (2 ranks)'),
    ):
        if kind:
            add(run, kind, up)
        assert said in client.get(f"/run/run/{page}").text
    for rank in range(2):
        add(run, "rank_ready", {"role": "source", "rank": rank})
    assert "beginnings" not in client.get(f"/run/run/{page}").text
    add(run, "recovery_launched", LAUNCHED)
    assert "sink (1 rank) starts since" in client.get(f"/run/run/{page}").text
