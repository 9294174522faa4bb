"""`Balanced`: rows go to a free rank. After any kill each row is there once, in the order of the source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left, one_engine
from tests.e2e.ladder import of_kind, pids
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.relayout.requests import ResizeJob

STEPS = 120
ROWS = 24
RANKS = 3
ROLES = f"""
import asyncio
import os
import time

import numpy as np

from rolemesh import Balanced, Batch, Broadcast, Split, operator


class Source:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        per = {ROWS} // self.ctx.world_size
        first = self.ctx.step * {ROWS} + self.ctx.rank * per
        return Batch({{"x": np.arange(first, first + per)}})


class Work:
    def __init__(self, ctx, slow=0.0):
        self.ctx, self.s = ctx, slow if ctx.rank == 0 else 0.0005
        self.scale = -1

    @operator(scale=Broadcast())
    def load(self, scale):
        self.scale = scale["scale"]

    def made(self, rows):
        ctx = self.ctx
        ctx.count(done=rows.rows)
        noise = ctx.rng(ctx.step, ctx.item).random(rows.rows)
        columns = {{"y": rows["x"] * self.scale + noise, "by": np.full(rows.rows, ctx.rank)}}
        return rows | columns

    @operator(rows=Balanced(rows=2), returns=Split())
    def one(self, rows):
        time.sleep(self.s)
        return self.made(rows)

    @operator(rows=Balanced(rows=1, concurrency=4), returns=Split())
    async def many(self, rows):
        await asyncio.sleep(self.s * 4 * self.ctx.rng(self.ctx.step, self.ctx.item, "s").random())
        return self.made(rows)

    @operator(rows=Balanced(rows=2, concurrency=2, on_error="drop"), returns=Split())
    async def flaky(self, rows):
        await asyncio.sleep(self.s)
        if os.urandom(1)[0] < 64:
            raise ConnectionError("it comes and goes")
        return self.made(rows)

    @operator(rows=Balanced(), returns=Split())
    def fewer(self, rows):
        return rows[:0]


class Audit:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(rows=Broadcast())
    def see(self, rows):
        time.sleep(0.02)  # behind the sink: it takes what a restarted rank sends again
        self.ctx.record(seen=rows["x"].tolist())


class Sink:
    def __init__(self, ctx):
        self.ctx, self.total, self.rows = ctx, 0.0, 0

    @operator(rows=Split())
    def add(self, rows):
        self.total = self.total * 0.5 + float(rows["y"].sum())
        self.rows += rows.rows
        self.ctx.record(**{{f"x{{self.ctx.rank}}": rows["x"].tolist(), f"by{{self.ctx.rank}}": rows["by"].tolist()}})

    @operator(returns=Broadcast())
    def scale(self):
        return {{"scale": 1 + self.ctx.step % 3}}

    def snapshot(self):
        return {{"total": self.total, "rows": self.rows}}

    def restore(self, state):
        self.total, self.rows = state.get("total", 0.0), state.get("rows", 0)
"""
FLOW = """
from rolemesh import AtMost, flow


@flow
def shared(job, operator="one", lag=0, first=0):
    rows = getattr(job.work, operator)(job.source.next(), lag=lag)
    job.sink.add(rows, lag=AtMost(first) if first else 0)
    job.work.load(job.sink.scale(), lag=1)


@flow
def audited(job):
    rows = job.work.flaky(job.source.next())
    job.sink.add(rows)
    job.audit.see(rows)
    job.work.load(job.sink.scale(), lag=1)
"""
JOB = f"""
name: shared
flow: shared_flow.py:shared
steps: {STEPS}
roles:
  source:
    use: function
    options: {{target: "shared_roles.py:Source"}}
    world_size: 2
    resources: {{cpu: 0.1}}
  work:
    use: function
    options: {{target: "shared_roles.py:Work", kwargs: {{slow: 0.003}}}}
    world_size: {RANKS}
    resources: {{cpu: 0.1}}
  sink: {{use: function, options: {{target: "shared_roles.py:Sink"}}, world_size: 2, resources: {{cpu: 0.1}}}}
failover: [{{use: process}}, {{use: job}}]
engine: {{options: {{stop_grace_s: 2}}}}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Job]:
    for name, text in (("shared_roles.py", ROLES), ("shared_flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    job = Job(tmp_path, "shared", ("--backend", "local"))
    yield job
    nothing_is_left(job.ids())


def check(job: Job, *args: str) -> dict[str, int]:
    """Run the job: each row once, in the order of the source and in the metrics. How many rows each rank has made."""
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    made = dict.fromkeys(map(str, range(RANKS)), 0)
    lines = job.metrics()
    assert [line["step"] for line in lines] == list(range(STEPS))
    for line in lines:
        said = line["records"]
        assert [*said["x0"], *said["x1"]] == list(range(line["step"] * ROWS, (line["step"] + 1) * ROWS))
        assert line["done"] == ROWS, line["step"]  # each row counts once, whoever has made it, and how often
        for rank in (*said["by0"], *said["by1"]):
            made[str(rank)] += 1
    return made


@pytest.mark.soak
@pytest.mark.parametrize("operator", ["one", pytest.param("many", marks=pytest.mark.soak)])
def test_slow_ranks_do_less_and_the_result_is_the_same(shared: Job, operator: str) -> None:
    made = check(shared, f"params.operator={operator}")
    assert made["0"] < min(made["1"], made["2"])
    there = shared.result()["state_sha256"]
    shared.backend = ("--engine=inline",)
    assert len(set(check(shared, f"params.operator={operator}").values())) == 1
    assert shared.result()["state_sha256"] == there


@pytest.mark.parametrize(
    ("operator", "targets", "seed"),
    [
        pytest.param("one", "rank", 1, marks=pytest.mark.soak),
        pytest.param("many", "rank", 2, marks=pytest.mark.soak),
        ("one", "rank,agent,master,zygote", 3),
    ],
)
def test_each_row_is_there_once_despite_kills(shared: Job, operator: str, targets: str, seed: int) -> None:
    chaos = f"kills=6,seed={seed},targets={targets}"
    check(shared, f"params.operator={operator}", "--chaos", chaos, "--chaos-compare")


@pytest.mark.parametrize(
    "given", [(), pytest.param(("params.operator=many", "params.first=3"), marks=pytest.mark.soak)], ids=["", "first"]
)
def test_ranks_that_share_rows_out_become_more_and_fewer_while_others_are_killed(
    shared: Job, given: tuple[str, ...]
) -> None:
    endless = ("steps=100000", "engine.options.grant=20", "metrics.every=1")
    process = shared.start(*endless, "roles.work.world_size=2", *given)
    first = pids(shared.running(3))
    moments = (("layout_changed", "sink/0"), ("stop_point", "work/0"), ("layout_changed", "master"))
    with ControlClient(shared.run_dir) as client:
        for number, (size, (moment, target)) in enumerate(zip((4, 1, 3), moments, strict=True), 1):
            client.ask(ResizeJob({"work": size}, "the test"))
            until(lambda kind=moment, n=number: len(of_kind(shared, kind)) >= n, moment)
            shared.kill_process(target)
            until(lambda n=number: len(of_kind(shared, "resized")) >= n, f"{size} ranks")
            now = pids(shared.running())
            assert Counter(who.partition("/")[0] for who in now) == {"source": 2, "work": size, "sink": 2}
    assert all(now[who] == first[who] for who in ("source/0", "source/1", "sink/1"))
    assert shared.cli("stop", shared.name, "--drain").returncode == 0
    out, _ = process.communicate()
    assert process.returncode == 0, out
    steps = int(shared.result()["committed_steps"])
    lines = shared.metrics()
    assert [line["step"] for line in lines] == list(range(steps))
    rows = [[*line["records"]["x0"], *line["records"]["x1"]] for line in lines]
    if given:
        assert sorted(row for taken in rows for row in taken) == list(range(steps * ROWS))
        return
    assert [row for taken in rows for row in taken] == list(range(steps * ROWS))
    digests = shared.result()["state_sha256"]
    shared.backend = ("--engine=inline",)
    calm = shared.run(f"steps={steps}")
    assert calm.returncode == 0, calm.stdout + calm.stderr
    assert shared.result()["state_sha256"] == digests


def test_failed_rows_are_left_out_for_every_consumer_despite_kills(shared: Job) -> None:
    text = JOB.replace("shared_flow.py:shared", "shared_flow.py:audited").replace(
        "  sink:",
        '  audit: {use: function, options: {target: "shared_roles.py:Audit"}, resources: {cpu: 0.1}}\n  sink:',
    )
    (shared.folder / "job.yaml").write_text(text)
    done = shared.run("steps=40", "--chaos", "kills=4,seed=11,targets=work/*")
    assert done.returncode == 0, done.stdout + done.stderr
    left_out = 0
    for line in shared.metrics():
        seen, step = line["records"]["seen"], line["step"]
        assert seen == [*line["records"]["x0"], *line["records"]["x1"]]
        assert seen == sorted(set(seen))
        assert set(seen) <= set(range(step * ROWS, (step + 1) * ROWS))
        assert line.get("rows_left_out", 0) == ROWS - len(seen), step
        left_out += ROWS - len(seen)
    assert left_out > 0
    assert "left out after ConnectionError: it comes and goes" in done.stdout
    assert "rows left out after errors" in done.stdout


def check_first(job: Job, bound: int, *args: str) -> set[int]:
    """Run the job; each row once, not too old, and as many in each step. How old rows were."""
    done = job.run(f"params.first={bound}", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    taken: dict[int, int] = {}
    for line in job.metrics():
        for rank in range(2):
            rows = line["records"][f"x{rank}"]
            assert len(rows) == ROWS // 2
            taken |= dict.fromkeys(rows, line["step"])
    assert sorted(taken) == list(range(STEPS * ROWS))
    ages = {step - row // ROWS for row, step in taken.items()}
    assert max(ages) <= bound
    return ages


@pytest.mark.parametrize("chaos", ["kills=6,seed=5,targets=rank", pytest.param("", marks=pytest.mark.soak)])
def test_items_that_are_finished_first_are_taken_first(shared: Job, chaos: str) -> None:
    slow = "roles.work.options.kwargs.slow=0.02"
    ages = check_first(shared, 3, slow, *(("--chaos", chaos) if chaos else ()))
    assert len(ages) > 1


@pytest.mark.soak
def test_a_job_that_continues_from_the_disk_knows_the_taken_items(shared: Job) -> None:
    text = (shared.folder / "job.yaml").read_text()
    (shared.folder / "job.yaml").write_text(
        one_engine(text + "engine: {options: {snapshots: {every: 1, persist_every: 25}}}\n")
    )
    assert shared.run("steps=50", "params.first=3").returncode == 0
    before = shared.metrics()
    resumed = shared.run("--resume", "shared", "params.first=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    lines = before + shared.metrics()
    assert [line["step"] for line in lines] == list(range(STEPS))
    rows = [row for line in lines for rank in range(2) for row in line["records"][f"x{rank}"]]
    assert sorted(rows) == list(range(STEPS * ROWS))
    refused = shared.run("--resume", "shared", "params.first=3", f"steps={STEPS + 9}", "roles.sink.world_size=1")
    assert refused.returncode == 1
    assert "each of which had taken some items" in refused.stdout + refused.stderr


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_process_may_be_killed_at_any_moment(shared: Job, seed: int) -> None:
    operator = ("one", "many")[seed % 2]
    check(shared, f"params.operator={operator}", "--chaos", f"kills=8,seed={seed}", "--chaos-compare")
    check_first(shared, 3, f"params.operator={operator}", "--chaos", f"kills=8,seed={seed + 100}")


@pytest.mark.soak
def test_a_job_that_goes_on_from_the_disk_has_the_rows_that_were_on_their_way(shared: Job) -> None:
    check(shared)
    whole = shared.result()["state_sha256"]
    text = (shared.folder / "job.yaml").read_text()
    (shared.folder / "job.yaml").write_text(
        one_engine(text + "engine: {options: {snapshots: {every: 1, persist_every: 25}}}\n")
    )
    assert shared.run("steps=50").returncode == 0
    resumed = shared.run("--resume", "shared", "roles.work.world_size=2", "roles.sink.world_size=2")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert shared.result()["state_sha256"] == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("roles", "Balanced(rows=2)", "Balanced(rows=2, concurrency=4)"), "concurrency=4 needs an async def"),
        (("roles", "Balanced(rows=2), returns=Split()", "Balanced(rows=2), returns=Broadcast()"), "returns=Split()"),
        (("roles", "    def made(self", "    snapshot = None\n\n    def made(self"), "have state"),
        (("flow", "(job.source.next(), lag=lag)", "([1, 2])"), "it takes no value of another call"),
        (("flow", "first=0", "first=3"), ""),
        (("flow", "AtMost(first) if first else 0", "AtMost(2), every=2"), "leave every= out"),
        (("roles", "rows=Split())\n    def add", "rows=Broadcast())\n    def add"), ""),
        (("flow", "lag=lag", "lag=AtMost(2)"), "an exact lag"),
    ],
)  # fmt: skip
def test_validate_reports_wrong_uses_of_balanced_inputs(shared: Job, change: tuple[str, str, str], said: str) -> None:
    path = shared.folder / f"shared_{change[0]}.py"
    assert change[1] in path.read_text()
    path.write_text(path.read_text().replace(*change[1:]))
    checked = shared.cli("validate", "job.yaml")
    assert checked.returncode == (2 if said else 0), checked.stderr
    assert said in checked.stderr


def test_an_operator_that_keeps_rows_back_is_an_error(shared: Job) -> None:
    done = shared.run("params.operator=fewer", "failover=[]")
    assert done.returncode == 1
    assert "it returned 0 rows for an item of 1" in json.dumps(shared.result()["failure"])
