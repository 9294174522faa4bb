"""A run of ten days and 16 ranks: its record is bounded, and every reader of it is quick and needs little memory."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from rolemesh.api.failures import Failure
from rolemesh.api.observer import Event, RoleTimes, RunInfo, StepMetrics
from rolemesh.runs.jsonl import event_line, metrics_line
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_durable.api.extensions import PHASES, Outgoing, Span, Totals
from rolemesh_recorder.accounting import Accounts, Spans, Wall
from rolemesh_recorder.lines import FLOW_FILE, Account, FlowEdge, FlowFile, FlowOp, Head, Life, Line, rank_folder
from rolemesh_recorder.parts import Parts, part_files, read_part
from rolemesh_recorder.reading import read_accounts
from rolemesh_view.guard import Access
from rolemesh_view.server import application
from rolemesh_view.viewed import Runs

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
NUMBERS = {name: number for number, name in PHASES.items()}
DAYS = 10
BEGIN_S = 1_795_000_000
STEP_S, DAY_S, PERIOD_S = 10, 86_400, 0.5
RESTART_S = 43_200
"""Seconds between two starts of each rank's process."""
MAX_BYTES = 4_000_000
SIZES = {"data": 1, "rollout": 8, "reward": 1, "trainer": 6}
OPS = ("data.next", "rollout.generate", "reward.score", "trainer.train")
COMPUTES = {"data": 0.2, "rollout": 5.5, "reward": 0.8, "trainer": 3.0}
FLOW = FlowFile(
    "ten-days",
    tuple(FlowOp(at, label.partition(".")[0], label) for at, label in enumerate(OPS)),
    tuple(FlowEdge(at, at, at + 1, "batch", "Split(axis=0) → Split(axis=0)") for at in range(len(OPS) - 1)),
    SIZES,
    {},
)


def write_run(run_dir: Path, days: float, *, processes: int = 2) -> None:
    """Write the folder of a run of `days` days, which has ended.

    The recorder's accounts, spans and parts see an injected clock. Ranks of a role have equal records.
    """
    steps = int(days * DAY_S / STEP_S)
    (run_dir / "record").mkdir(parents=True)
    (run_dir / "record" / FLOW_FILE).write_bytes(msgspec.json.encode(FLOW))
    info = RunInfo("ten-days", str(run_dir), steps, SIZES, OPS)
    (run_dir / RUN_FILE).write_bytes(msgspec.json.encode(info))
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(partial(_record, run_dir, steps), SIZES))
    for role, size in SIZES.items():
        for rank in range(1, size):
            folder = rank_folder(run_dir, role, rank)
            shutil.copytree(rank_folder(run_dir, role, 0), folder)
            for path in folder.iterdir():
                path.write_bytes(path.read_bytes().replace(b'"rank":0,', b'"rank":%d,' % rank))
    with (run_dir / METRICS_FILE).open("wb") as file:
        file.writelines(metrics_line(line)[1] for line in _metrics(steps))
    with (run_dir / EVENTS_FILE).open("wb") as file:
        file.writelines(event_line(event)[1] for event in _events(steps))
    result = {"status": "done", "committed_steps": steps, "steps": steps, "wall_s": steps * STEP_S, "message": ""}
    (run_dir / RESULT_FILE).write_bytes(msgspec.json.encode(result))


def _record(run_dir: Path, steps: int, role: str) -> None:
    """Write the record of rank 0 of a role."""
    chance, per_life = random.Random(role), RESTART_S // STEP_S
    for generation, first in enumerate(range(0, steps, per_life)):
        began = BEGIN_S + first * STEP_S
        head = Head(role, 0, generation, 1000 + generation, f"node{generation % 4}", began * 1_000_000)
        parts = Parts(rank_folder(run_dir, role, 0), head, MAX_BYTES)
        parts.append([Life("setup", began * 1_000_000, 3_000_000)])
        for lines in _life(role, began, range(first, min(first + per_life, steps)), chance):
            parts.append(lines)
            parts.tidy()
        parts.close()


def _life(role: str, began: int, steps: range, chance: random.Random) -> Iterator[list[Line]]:
    """Yield the lines of a process, period by period, as `RankRecord` writes them."""
    op = list(SIZES).index(role)
    edge = max(0, op - 1)
    wall = Wall(began * 1_000_000_000, 0)
    spans = Spans(wall)
    now = computing = waiting = 0
    done = steps.start - 1

    def totals() -> Totals:
        return Totals(done, computing, {edge: waiting}, 0, 0, (0, -1, 0))

    def edges() -> tuple[dict[int, Outgoing], dict[int, int]]:
        return {}, {}

    accounts = Accounts(wall, spans, totals, edges, 0, resume=steps.start - 1)
    period = int(PERIOD_S * 1e9)
    for step in steps:
        ends = (step - steps.start + 1) * STEP_S * 1_000_000_000
        own = int(COMPUTES[role] * 1e9 * chance.uniform(0.8, 1.25))
        begins = ends - own
        found = [
            spans.take(Span(NUMBERS["waiting"], op, edge, step, now, begins)),
            spans.take(Span(NUMBERS["computing"], op, -1, step, begins, ends)),
        ]
        lines: list[Line] = [line for line in found if line is not None]
        while now < ends:
            now += period
            waiting += max(0, min(period, begins - now + period))
            computing += max(0, min(period, now - begins))
            done = step if now >= ends else done
            yield [*lines, accounts.next(now)]
            lines = []


def _metrics(steps: int) -> Iterator[StepMetrics]:
    chance = random.Random(0)
    times = {role: RoleTimes(seconds, STEP_S - seconds, 0.0) for role, seconds in COMPUTES.items()}
    names = ["loss", "reward", "kl", "entropy", "grad_norm", "lr", "tokens", "length"]
    for step in range(steps):
        values = {name: chance.gauss(1 - step / steps, 0.1) for name in names}
        operators = {"trainer.train": values}
        yield StepMetrics(step, 1, BEGIN_S + (step + 1) * STEP_S, values, operators, times, {"rollout": 1.0}, {})


def _events(steps: int) -> Iterator[Event]:
    found: list[tuple[float, str, dict[str, object]]] = [
        (0, "job_started", {"name": "ten-days"}),
        (3, "job_running", {}),
    ]
    for number, at in enumerate(range(RESTART_S, steps * STEP_S, RESTART_S), 1):
        failure = msgspec.to_builtins(Failure("exit", "trainer", 0, "node0", message="killed", exit_code=137))
        resume = at // STEP_S
        plan = {"level": "job", "restart": [], "reason": "it was killed"}
        ranks = [{"role": role, "rank": rank, "resume": resume} for role, size in SIZES.items() for rank in range(size)]
        found += [
            (at, "failure", {"failure": failure}),
            (at + 0.1, "recovery_planned", {"number": number, "plan": plan}),
            (at + 0.2, "recovery_launched", {"number": number, "ranks": ranks}),
            (at + 3, "recovered", {"number": number}),
        ]
    found.append((steps * STEP_S + 1, "job_ended", {"status": "done"}))
    for seq, (at, kind, data) in enumerate(found, 1):
        yield Event(seq, 1, BEGIN_S + at, kind, data)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("ROLEMESH_TEN_DAYS"):  # written before, as this takes minutes
        return Path(given)
    folder = tmp_path_factory.mktemp("long") / "ten-days"
    write_run(folder, DAYS)
    return folder


def test_the_record_is_bounded_its_old_parts_are_marked_and_its_sums_are_exact(run_dir: Path) -> None:
    for role, size in SIZES.items():
        files = part_files(rank_folder(run_dir, role, size - 1))
        coarse = [next(head.coarse for head in read_part(path) if isinstance(head, Head)) for path in files]
        assert sum(path.stat().st_size for path in files) < 1.1 * MAX_BYTES
        assert coarse == sorted(coarse, reverse=True)
        assert (coarse[0] > 3, coarse[-1]) == (True, 0)
        accounts: list[Account] = list(read_accounts(run_dir, role, size - 1))
        assert sum(account.d for account in accounts) == DAYS * DAY_S * 1_000_000
        assert sum(account.steps for account in accounts) == DAYS * DAY_S // STEP_S


@pytest.mark.parametrize(
    ("verb", "arguments", "largest_mb"),
    [
        ("top", ["--once"], 0.1),
        ("report", ["-o", "{out}"], 1),
        ("trace", ["-o", "{out}"], 50),
        ("sql", ["select operator, count(*), sum(seconds) from spans group by operator"], 0.1),
        ("sql", ["select role, sum(waiting_s) / sum(wall_s) from ranks group by role"], 0.1),
        ("sql", ["select name, count(*) from metrics group by name"], 0.1),
        ("sql", ["select * from metrics", "--format", "parquet", "-o", "{out}"], 100),
        ("events", [], 0.1),
    ],
)
def test_a_command_takes_at_most_ten_seconds_of_cpu_and_500_mb(
    run_dir: Path, tmp_path: Path, verb: str, arguments: list[str], largest_mb: float
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "rolemesh.cli", verb, str(run_dir)]
    command += [each.format(out=out) for each in arguments]
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); used = resource.getrusage("
    code += "resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    shown, _, used = done.stdout.strip().rpartition("\n")
    cpu_s, peak_mb = map(float, used.split())
    written_mb = (out.stat().st_size if out.exists() else len(shown)) / 1e6
    print(f"{verb}: {cpu_s:.1f} s of CPU, {peak_mb:.0f} MB of memory, {written_mb:.2f} MB written")
    assert cpu_s <= 10
    assert peak_mb <= 500
    assert written_mb <= largest_mb


def test_the_viewer_answers_from_little_memory(run_dir: Path) -> None:
    client = TestClient(
        application(Runs(run_dir.parent, run_dir), Access("t")),
        "http://127.0.0.1",
        headers={"authorization": "Bearer t"},
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for page in ("flow", "time", "failures", "rows", "metrics", "data/metrics?name=loss", "data/lanes", "advice"):
        client.get(f"/run/{run_dir.name}/{page}")
        began = time.perf_counter()
        answer = client.get(f"/run/{run_dir.name}/{page}")
        print(f"{page}: {time.perf_counter() - began:.3f} s, {len(answer.content) / 1e3:.0f} kB")
        assert answer.status_code == 200
        assert len(answer.content) < 2_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KB"
