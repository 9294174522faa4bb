"""Jobs of 200,000 events. A command that follows one or reads its events requests and holds one page at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh.cli import main
from rolemesh_durable.control import history
from rolemesh_durable.control.living import LivingRun
from rolemesh_durable.control.watch import follow
from rolemesh_durable.journal.paging import BLOCK, pages
from rolemesh_runtime.background import Teller

LONG = 200_000


def numbered(path: Path, count: int, every: int = 1) -> Path:
    with path.open("w") as file:
        for n in range(0, count * every, every):
            file.write(json.dumps({"seq": n, "text": "x" * (n % 97)}) + "\n")
    return path


@pytest.mark.parametrize("after", [-1, 0, 1, 4711, 59_990, 59_998, 59_999, 60_000, 1 << 62])
@pytest.mark.parametrize("torn", [False, True])
def test_a_page_begins_where_it_is_asked_to_wherever_the_file_is_damaged(
    tmp_path: Path, after: int, torn: bool
) -> None:
    path = numbered(tmp_path / "f.jsonl", 20_000, every=3)
    if torn:
        data = bytearray(path.read_bytes())
        for at in range(BLOCK // 2, len(data), BLOCK):
            data[at : at + 200] = b"\0" * 200
        path.write_bytes(bytes(data) + b'{"seq": 60000, "te')
    found = [json.loads(line)["seq"] for page in pages(path, "seq", after, 100) for line in page]
    expected = list(range(max(0, after + 1 + -(after + 1) % 3), 60_000, 3))
    if torn:
        assert set(found) <= set(expected)
        assert len(found) >= 0.95 * len(expected) - 20
        assert found == sorted(set(found))
    else:
        assert found == expected


def test_pages_are_bounded_by_count_and_by_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps({"step": n, "text": "x" * 1_000_000}) + "\n" for n in range(20)))
    assert [len(page) for page in pages(path, "step", -1)] == [5, 5, 5, 5]
    assert [len(page) for page in pages(path, "step", 15, 3)] == [3, 1]
    assert list(pages(tmp_path / "none", "step", -1)) == []


class Counting:
    """Counts what is broadcast."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.steps: list[int] = []
        self.told = threading.Event()

    def each(self) -> dict[str, Teller]:
        return {"counting": self.broadcast}

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        if hook == "event":
            self.events.append(arguments["event"].seq)
        if hook == "steps_finished":
            self.steps += [line.step for line in arguments["metrics"]]
        if hook == "status":
            self.told.set()


@pytest.mark.parametrize("spoil", [("events.jsonl", os.mkfifo), ("job.yaml", lambda path: path.write_bytes(b"\x01"))])
def test_events_of_a_run_with_a_file_that_cannot_be_read_end_with_cause_place_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: tuple[str, Callable[[Path], object]]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"name": "run"}')
    spoil[1](tmp_path / "run" / spoil[0])
    assert main(["events", str(tmp_path / "run"), "--last", "2"]) != 0
    said = capsys.readouterr().err
    assert f"{tmp_path}/run/{spoil[0]}" in said
    assert said.count("\n  → ") == 1


def test_events_need_no_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text('{"name": "run"}')
    os.mkfifo(tmp_path / "metrics.jsonl")
    line = '{"seq":%d,"epoch":1,"time":1.0,"kind":"%s","data":{}}\n'
    (tmp_path / "events.jsonl").write_text(line % (1, "job_started") + line % (2, "job_ended"))
    assert main(["events", str(tmp_path), "--last", "1"]) == 0
    said = capsys.readouterr().out
    assert ("job_started" in said, "job_ended" in said) == (False, True)


def test_a_long_job_is_attached_to_from_now_and_all_of_it_can_be_asked_for(start_master: Any) -> None:
    master = start_master(remembers=4096)
    master.age(LONG)
    latest, everything = Counting(), Counting()
    watching = [
        threading.Thread(target=follow, args=(master.run_dir, seen), kwargs={"owner": False, "latest": few})
        for seen, few in ((latest, 500), (everything, None))
    ]
    for thread in watching:
        thread.start()
    assert latest.told.wait(HANG_S)
    assert everything.told.wait(HANG_S)
    master.journal("noise")
    master.end()
    for thread in watching:
        thread.join()
    assert latest.events == list(range(LONG - 499, LONG + 3))
    assert latest.steps == list(range(LONG - 500, LONG))
    assert everything.events == list(range(1, LONG + 3))
    assert everything.steps == list(range(LONG))


def test_the_events_of_a_long_job_are_read_without_holding_all(start_master: Any) -> None:
    master = start_master()
    master.age(LONG // 4)  # of which no more than a page may be held; tracing is slow
    master.end()
    run = LivingRun(master.run_dir)
    tracemalloc.start()
    count = sum(len(page) for page in history.events(run, 0)) + sum(len(page) for page in history.lines(run, -1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == LONG // 2 + 1
    assert peak < 8 << 20


def test_stop_and_attach_and_events_of_a_long_job(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master(remembers=4096)
    master.age(LONG)
    attached = subprocess.Popen(
        [sys.executable, "-m", "rolemesh.cli", "attach", "grpo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    while not master.requests:
        time.sleep(0.01)
    assert main(["stop", "grpo"]) == 0
    assert capsys.readouterr().out == f"grpo interrupted · {LONG} of 10 steps\n"
    out = attached.communicate()[0].decode()
    assert attached.returncode == 130, out
    assert "only the last 500 events and steps" in out

    assert main(["events", "grpo", "--json", "-n", "3"]) == 0
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()][:3] == [LONG - 1, LONG, LONG + 1]
    assert main(["events", "grpo", "--json", "--after", str(LONG)]) == 0
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["job_ended"]


def test_warnings_are_shown_by_status_and_while_a_stop_waits(
    start_master: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    master = start_master()
    full = "the journal cannot be written since 12 s: No space left on device"
    master.warnings = (full,)
    assert main(["status", "grpo"]) == 0
    assert f"warning: {full}" in capsys.readouterr().out
    assert main(["status"]) == 0
    assert "No space left" in capsys.readouterr().out
    assert main(["status", "grpo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [full]

    def waits() -> None:
        for seconds in (12, 13, 14):
            master.warnings = (full.replace("12", str(seconds)),)
            asked = len(master.requests)
            while len(master.requests) < asked + 2:
                time.sleep(0.01)
        master.end("interrupted", 130)

    master.on_stop = lambda: threading.Thread(target=waits).start()
    assert main(["stop", "grpo"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"grpo: {full}"]
