"""A run whose files do not come holds up neither other runs nor the list, and says so."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.waiting import HANG_S

from rolemesh_view import application, patience, server
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs, Viewed


@contextmanager
def held(run: Viewed, *, works: bool = False) -> Iterator[None]:
    """Let no answer read the run's files, as if their store did not answer, or as if another thread read them."""
    ready, over = threading.Event(), threading.Event()

    def hold() -> None:
        place = run.path / "record" if works else None
        with run.lock:
            ready.set()
            while not over.wait(0.001 if place else 60):
                sum(range(10_000))

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(HANG_S)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_store_that_does_not_answer_holds_up_its_run_only(
    seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (server, patience):
        monkeypatch.setattr(module, "LIMIT_S", 0.3)
    monkeypatch.setattr(patience, "ROW_S", 0.3)
    for name in ("one", "other"):
        shutil.copytree(seen, tmp_path / name, ignore=shutil.ignore_patterns("snapshots", "state.sqlite", "logs"))
    runs = Runs(tmp_path)
    client = TestClient(application(runs, Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"})
    silent = runs.find("other")
    assert silent is not None
    with held(silent):
        while (refused := client.get("/run/other/failures")).status_code == 200:
            time.sleep(0.01)  # its thread has just begun, or waits for a processor
        assert (refused.status_code, f"{tmp_path / 'other'} has not answered for 0.3 s" in refused.text) == (503, True)
        for module, name in ((server, "PAGE_S"), (patience, "ROW_S")):
            monkeypatch.setattr(module, name, 600.0)
        assert client.get("/run/other/events").status_code == 503, "without another wait"
        assert client.get("/run/one/failures").status_code == 200
        while "the viewer still reads this run" in (text := client.get("/").text):
            time.sleep(0.01)  # it has just begun, or waits for a processor
        assert "the store of this run does not answer" in text
        assert text.count('class="state done"') == 1
    while client.get("/").text.count('class="state done"') < 2:
        time.sleep(0.01)  # the threads that waited end
    assert client.get("/run/other/events").status_code == 200


def test_a_folder_that_does_not_answer_before_the_first_listing_is_named_and_the_others_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("older", "silent", "newer", "no-run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("note" if name == "no-run" else "run.json")).write_text("{}")
    os.utime(tmp_path / "older", (1e9, 1e9))
    over, is_file = threading.Event(), Path.is_file

    def slow(path: Path) -> bool:
        if path.parent.name == "silent":
            over.wait(HANG_S)
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", slow)
    client = TestClient(
        application(Runs(tmp_path), Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"}
    )
    rows = r'<a href="./run/(.*?)/overview">.*?<span class="state ">(.*?)</span>'
    try:
        for limit_s in (2.0, 600.0):  # it waits only once
            monkeypatch.setattr(patience, "ROW_S", limit_s)
            while (text := client.get("/").text).count("no answer") > 1:
                time.sleep(0.01)  # a thread waits for a processor
            assert re.findall(rows, text) == [("newer", "new"), ("older", "new"), ("silent", "no answer")]
        assert client.get("/run/older/metrics").status_code == 200
    finally:
        over.set()
    while "no answer" in client.get("/").text:
        time.sleep(0.01)
    assert {name for name, _ in re.findall(rows, client.get("/").text)} == {"newer", "older", "silent"}


def test_a_list_waits_for_a_few_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ROW_S", 60.0)
    over, asked = threading.Event(), []

    def work(name: str) -> str:
        asked.append(name)
        monkeypatch.setattr(patience, "ROW_S", 0.5)
        return "" if name.startswith("silent") and not over.wait(HANG_S) else name

    names, stuck = ["a", *(f"silent-{at}" for at in range(9)), "b"], {}
    assert patience.in_turn(names, names, work, stuck, Path("runs")) == ["a", *[None] * 10]
    assert list(stuck) == names[1 : 1 + patience.MOST_WAITS]
    assert asked == names[: 1 + patience.MOST_WAITS]
    over.set()


def test_an_error_of_one_run_is_the_callers() -> None:
    def work(name: str) -> str:
        raise ValueError(name)

    with pytest.raises(ValueError, match="a"):
        patience.in_turn(["a"], ["a"], work, {}, Path("runs"))


def test_a_page_of_a_run_that_is_read_for_long_says_how_far_that_is_and_comes_afterwards(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(seen.parent, seen)
    client = TestClient(application(runs, Access("t")), "http://127.0.0.1", headers={"authorization": "Bearer t"})
    address = f"/run/{seen.name}/failures"
    assert "<h1>Failures</h1>" in client.get(address).text
    run = runs.find(seen.name)
    assert run is not None
    run.reads["records of ranks"] = 1234, 10_000
    monkeypatch.setattr(server, "PAGE_S", 0.1)
    with held(run, works=True):
        said = client.get(address)
        assert said.status_code == 200
        for part in ("reads this run", "1,234 of 10,000", "<code>record</code>", 'http-equiv="refresh"'):
            assert part in said.text, part
        for module in (server, patience):
            monkeypatch.setattr(module, "LIMIT_S", 30.0)  # far longer than between two looks
        assert "reads this run" in client.get(address).text
    while "reads this run" in (text := client.get(address).text):
        time.sleep(0.01)
    assert "<h1>Failures</h1>" in text


def test_an_answer_that_comes_at_a_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(result: asyncio.Future[str], seconds: float) -> str:
        while not result.done():
            await asyncio.sleep(0.001)
        result.cancel()
        raise TimeoutError

    monkeypatch.setattr(patience.asyncio, "wait_for", late)
    assert asyncio.run(patience.within(1.0, lambda: "there", Path("runs"))) == "there"

    def fail() -> str:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        asyncio.run(patience.within(1.0, fail, Path("runs")))
