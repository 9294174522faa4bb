"""The cost of a run, against a sum over its seconds, rank by rank."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer import Typer
from typer.testing import CliRunner

from rolemesh.api.observer import Event, RunInfo
from rolemesh.runs.run import EVENTS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_facts import RunFacts
from rolemesh_queries.database import opened
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, Account, FlowFile, FlowOp, Head, encode
from rolemesh_report.command import ReportVerb

BEGIN = 1_795_000_000
SECONDS = 7200
RESIZED, FAILED, RECOVERED = 1800, 3600, 4500
"""Seconds after the begin at which the rollout gets a second rank, a rank fails, and it has caught up."""
GPUS = {"trainer": [[0], [1]], "rollout": [[0], [2, 3]], "data": [[]]}
"""The devices of each rank after the resize. The first rollout shares the trainer's first one."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "costly"
    (folder / RECORD_DIR).mkdir(parents=True)
    sizes = {"trainer": 2, "rollout": 1, "data": 1}
    ops = tuple(FlowOp(at, role, f"{role}.do") for at, role in enumerate(sizes))
    (folder / RECORD_DIR / FLOW_FILE).write_bytes(encode(FlowFile("costly", ops, (), sizes, {})))
    place = folder / RECORD_DIR / "trainer-0"
    place.mkdir()
    spent = {"computing": 250_000, "edge 0": 500_000, "idle": 100_000}
    account = Account(BEGIN * 1_000_000, 1_000_000, 0, 1, spent)
    head = Head("trainer", 0, 0, 1, "n", BEGIN * 1_000_000)
    (place / "000000.jsonl").write_bytes(encode(head) + b"\n" + encode(account) + b"\n")
    info = RunInfo("costly", str(folder), 10, sizes, tuple(f"{role}.do" for role in sizes))
    (folder / RUN_FILE).write_bytes(msgspec.json.encode(info))
    failure = {"role": "trainer", "rank": 0, "cause": "signal"}
    plan = {"level": "process", "reason": "", "restart": [["trainer", 0]]}
    told = [
        (0, "job_started", {}),
        (RESIZED, "resized", {"number": 1, "sizes": {"rollout": 2}}),
        (FAILED, "failure", {"failure": failure, "silent_s": 0.0}),
        (FAILED + 1, "recovery_planned", {"number": 1, "plan": plan, "causes": ["signal"], "failures": []}),
        (FAILED + 9, "recovered", {"number": 1}),
        (RECOVERED, "regained", {"number": 1}),
        (SECONDS, "job_ended", {"status": "done"}),
    ]
    events = [Event(seq, 1, float(BEGIN + at), kind, data) for seq, (at, kind, data) in enumerate(told, 1)]
    (folder / EVENTS_FILE).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    (folder / RESULT_FILE).write_text('{"status": "done", "committed_steps": 10}')
    ranks = [
        {"role": role, "rank": rank, "node": "n", "slot": 0, "gpus": gpus}
        for role, all_ in GPUS.items()
        for rank, gpus in enumerate(all_)
    ]
    (folder / "plan.json").write_bytes(msgspec.json.encode({"ranks": ranks}))
    return folder


def test_hours_are_a_sum_over_seconds_with_resizes_and_failures(run: Path) -> None:
    hours, gpus, lost = (dict.fromkeys(GPUS, 0.0) for _ in range(3))
    for second in range(SECONDS):
        for role in GPUS:
            ranks = 1 if role == "data" or (role == "rollout" and second < RESIZED) else 2
            hours[role] += ranks / 3600
            # GPU 0 counts half for each of its two ranks.
            gpus[role] += sum(0.5 if gpu == 0 else 1.0 for held in GPUS[role][:ranks] for gpu in held) / 3600
            lost[role] += ranks / 3600 * (FAILED <= second < RECOVERED)
    found = {each.role: each for each in RunFacts(run).costs()}
    assert {role: each.rank_h for role, each in found.items()} == pytest.approx(hours)
    assert {role: each.lost * each.rank_h for role, each in found.items()} == pytest.approx(lost)
    assert {role: each.gpu_h for role, each in found.items()} == pytest.approx(gpus)
    assert found["data"].waiting == 0.0  # it ended before it had a record
    assert found["trainer"].waiting == pytest.approx(0.6)


def test_a_job_that_runs_costs_what_it_has_cost_so_far(run: Path) -> None:
    lines = (run / EVENTS_FILE).read_bytes().splitlines(keepends=True)
    (run / EVENTS_FILE).write_bytes(lines[0])
    (run / RESULT_FILE).unlink()
    assert [each.rank_h for each in RunFacts(run).costs(BEGIN + 1800)] == [1.0, 0.5, 0.5]
    (run / EVENTS_FILE).unlink()
    assert RunFacts(run).costs() == []


def test_a_query_gets_the_same_costs(run: Path) -> None:
    with opened(run, {"costs"}) as database:
        found = database.execute("SELECT * FROM costs").fetchall()
    assert found == [tuple(each) for each in RunFacts(run).costs()]


@pytest.mark.parametrize(("option", "price"), [([], None), (["--gpu-hour-price", "2"], "14.00 at 2 per GPU-hour")])
def test_the_report_shows_the_price_of_the_hours(run: Path, option: list[str], price: str | None) -> None:
    app = Typer()
    app.command()(ReportVerb.function())
    assert CliRunner().invoke(app, [str(run), *option]).exit_code == 0
    text = (run / "report.html").read_text()
    assert "GPU-hours" in text
    assert (price in text) if price else ("per GPU-hour" not in text)
