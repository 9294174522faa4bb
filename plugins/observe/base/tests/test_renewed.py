"""Pages of a run that has ended since they were made, or whose records take long to read."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rolemesh_recorder.lines import Account, encode
from rolemesh_runtime.lock import RunLock, lock_file
from rolemesh_view import application, renewed, viewed
from rolemesh_view.guard import Access
from rolemesh_view.renewed import Renewed
from rolemesh_view.viewed import Runs

from .test_server import ADDRESS, TOKEN, T, write_run

WAITED = re.compile(r"<h3>sink</h3>\n(?:.*\n)*?.*<b>(\d+)%</b> waits for batch of source.make")


def test_the_first_page_after_the_end_of_a_run_has_its_final_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewed, "SOON_S", 30.0)  # however busy the machine is
    folder = write_run(tmp_path / "run", ended=False)
    lock = RunLock(lock_file(folder))
    assert lock.share()
    client = TestClient(
        application(Runs(tmp_path), Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"}
    )
    record = folder / "record" / "sink-0" / "000000.jsonl"

    def share() -> int:
        """Return the share of the waits in the record, in percent."""
        accounts = [each for each in map(json.loads, record.read_text().splitlines()) if each["k"] == "account"]
        return round(100 * sum(a["spent"].get("edge 0", 0) for a in accounts) / sum(a["d"] for a in accounts))

    assert (share(), WAITED.findall(client.get("/run/run/flow").text)) == (60, ["60"])
    with record.open("ab") as file:
        file.write(encode(Account(T + 1_000_000, 1_000_000, 19, 10, {"edge 0": 1_000_000})) + b"\n")
    (folder / "result.json").write_text(json.dumps({"status": "done", "message": ""}))
    lock.close()
    assert (share(), WAITED.findall(client.get("/run/run/flow").text)) == (80, ["80"])


def test_a_page_says_how_old_its_numbers_are_and_follows_an_ended_run_until_it_has_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewed, "SOON_S", 0.0)
    folder = write_run(tmp_path / "run", ended=False)
    lock = RunLock(lock_file(folder))
    assert lock.share()
    runs = Runs(tmp_path)
    run = runs.find("run")
    assert run is not None
    assert run.look().age == 0
    go = threading.Event()
    look = viewed._look
    monkeypatch.setattr(viewed, "_look", lambda *given: (go.wait(), look(*given))[1])
    (folder / "result.json").write_text(json.dumps({"status": "done", "message": ""}))
    lock.close()
    client = TestClient(application(runs, Access(TOKEN)), ADDRESS, headers={"authorization": f"Bearer {TOKEN}"})
    page = client.get("/run/run/advice").text
    assert re.search(r"What follows is .* old. The viewer reads the records of the ranks, and newer numbers", page)
    threading.Timer(0.2, go.set).start()
    sent = client.get("/run/run/live?page=advice").text
    assert re.findall("event: (.*)", sent)[-1] == "over"
    assert "What follows is" not in sent.rpartition("event: live")[2], "the stream ends with the final look"


def test_a_value_of_something_that_lives_is_waited_for_only_while_it_is_older_than_its_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, values = [1000.0], iter(range(10))
    monkeypatch.setattr(renewed.time, "monotonic", lambda: now[0])
    value = Renewed(lambda: next(values))
    assert value.get() == 0
    now[0] += renewed.FRESH_S / 2
    assert value.get_within(30.0) == (0, 0.0)
    now[0] += renewed.OLDEST_S
    found, age = value.get_within(30.0)
    assert (found, age) == (1, 0.0)
