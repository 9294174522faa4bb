"""Roles get more and fewer ranks while their job runs: the others keep their processes, and no step is run twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, ended_well, of_kind, pids
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient, RefusedError
from rolemesh_durable.extensions.relayout.requests import ResizeJob, ResizeRequest

SLOW = ("steps=100000", "metrics.every=1", "engine.options.grant=20", "roles.work.options.kwargs.sleep=0.02")
"""Until it is drained: however slow the machine is, no job ends before it has been resized."""


RANGE = ("roles.work.world_size={min: 1, max: 3}", "roles.work.resources.cpu=0.5")


def drained(job: Job) -> int:
    """End the job in good order; how many steps it has done."""
    assert job.cli("stop", job.name, "--drain").returncode == 0
    return int(job.result()["committed_steps"])


def scaled(job: Job, **sizes: int) -> dict[str, int]:
    """Ask, wait for it, and return the pids of all ranks."""
    before = len(of_kind(job, "resized"))
    with ControlClient(job.run_dir) as client:
        client.ask(ResizeJob(sizes, "the test"))
    until(lambda: len(of_kind(job, "resized", "resize_refused")) > before, f"{sizes}")
    assert not of_kind(job, "resize_refused")
    status = job.running()
    counts = Counter(rank.role for rank in status.ranks)
    assert all(counts[role] == size for role, size in sizes.items())
    return pids(status)


def test_a_role_gets_more_and_fewer_ranks_and_the_others_keep_their_processes(make_job: Callable[..., Job]) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW, "metrics.every=7")
    first = pids(job.running(3))
    for size in (4, 1, 3):
        now = scaled(job, work=size)
        assert {who: now[who] for who in ("source/0", "sink/0")} == {who: first[who] for who in ("source/0", "sink/0")}
    steps = drained(job)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert job.metrics()[-1]["step"] == steps - 1
    calm = make_job(name="calm", extra=LADDER)
    done = calm.run(f"steps={steps}", "metrics.every=7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["state_sha256"] == calm.result()["state_sha256"]
    assert job.metrics()[-1]["reward"] == calm.metrics()[-1]["reward"]
    assert json.loads((job.run_dir / "run.json").read_text())["roles"]["work"] == 3
    plan = json.loads((job.run_dir / "plan.json").read_text())
    assert [each["rank"] for each in plan["ranks"] if each["role"] == "work"] == [0, 1, 2]
    assert (plan["roles"]["work"]["world_size"], plan["after_step"] >= 0) == (3, True)
    assert {each["route"].split()[-1] for each in plan["edges"]} == {"1→3", "3→1"}
    assert {event["data"]["plan"]["level"] for event in of_kind(job, "recovery_planned")} == {"resize"}


@pytest.mark.parametrize(
    ("moment", "target"),
    [
        pytest.param("stop_point", "source/0", marks=pytest.mark.soak),
        ("layout_changed", "master"),
        pytest.param("layout_changed", "sink/0", marks=pytest.mark.soak),
        ("layout_changed", "agent:node0"),
    ],
)
def test_any_process_may_be_killed_while_a_role_is_resized(
    make_job: Callable[..., Job], moment: str, target: str
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    job.running(3)
    with ControlClient(job.run_dir) as client:
        client.ask(ResizeJob({"work": 4}, "the test"))
        until(lambda: of_kind(job, moment), moment)
        job.kill_process(target)
    until(lambda: of_kind(job, "resized"), "resized")
    assert Counter(rank.role for rank in job.running().ranks)["work"] == 4
    ended_well(job, process, drained(job))


@pytest.mark.more
def test_an_impossible_size_is_refused_and_the_job_continues(make_job: Callable[..., Job]) -> None:
    job = make_job(extra=LADDER, backend=("--backend", "local", "--nodes", "1x(cpu=2)"))
    process = job.start(*SLOW, *RANGE)
    job.running(3)
    for asked, why in (
        ("wark=2", "the job has no role 'wark'; it has "),
        ("work=4", "role work may have from 1 to 3 ranks"),
        ("work=0", "role work may have from 1 to 3 ranks"),
        ("work=many", "'work=many' is no role and its number of ranks"),
        ("sink=2", "snapshot()['total'] of role sink belongs to each rank"),
        ("source=9", "there is no room: "),
    ):
        refused = job.cli("scale", job.name, asked)
        assert refused.returncode == 2, (asked, refused.stdout + refused.stderr)
        assert why in refused.stderr
    events = len(of_kind(job, "resize_asked"))
    with ControlClient(job.run_dir) as client:
        for role, size, why in (("work", 4, "role work may have from 1"), ("source", 9, "there is no room: ")):
            assert ResizeRequest({role: size}, "the test").refusal(client).startswith(why)
        for size in (1, 2):
            assert ResizeRequest({"work": size}, "the test").refusal(client) == ""
    assert len(of_kind(job, "resize_asked")) == events, "a question changes nothing"
    told = job.cli("scale", job.name, "work=2", "--json")
    assert told.returncode == 0, told.stdout + told.stderr
    assert json.loads(told.stdout)["outcome"] == "resized"
    again = job.cli("scale", job.name, "work=2")
    assert (again.returncode, again.stdout) == (0, "squares has that already: work 2\n")
    ended_well(job, process, drained(job))
    over = job.cli("scale", job.name, "work=1")
    assert over.returncode == 2
    assert "squares has ended already: done" in over.stderr


def test_a_job_without_snapshots_is_not_resized(make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.start(*SLOW)
    job.running(1)
    with ControlClient(job.run_dir) as client, pytest.raises(RefusedError, match="the job takes no snapshots"):
        client.ask(ResizeJob({"work": 1}, "the test"))


POST_TRAINING = Path(__file__).parents[1] / "chaos" / "post_training"
MODEL = Path(__file__).parents[2] / "examples" / "sft" / "tiny-llama"
SHARDS = 4000
COMPARED = 20


@pytest.mark.soak
@pytest.mark.slow
def test_an_fsdp_group_is_formed_again_while_it_trains(make_job: Callable[..., Job]) -> None:
    job = make_job("chaos")
    shutil.copytree(POST_TRAINING, job.folder, dirs_exist_ok=True)
    roles = job.folder / "roles.py"
    roles.write_text(roles.read_text().replace("PER_STEP * 24", f"PER_STEP * {SHARDS}"))
    always = (f"roles.trainer.options.model={MODEL}", "engine.options.snapshots.keep=99")
    process = job.start(f"steps={SHARDS}", "engine.options.grant=4", *always)
    first = pids(job.running(1))
    for size in (1, 2):
        now = scaled(job, trainer=size)
        assert {who: pid for who, pid in now.items() if "trainer" not in who} == {
            who: pid for who, pid in first.items() if "trainer" not in who
        }
    trained = drained(job)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    found = {line["step"]: line["loss"] for line in job.metrics()}
    assert sorted(found) == list(range(trained))
    steps = [event["data"]["layout"]["step"] for event in of_kind(job, "layout_changed")]
    for size, begins, last in ((1, steps[0], steps[1]), (2, steps[1], trained - 1)):
        ends = min(begins + COMPARED, last)
        name = f"from-{begins}"
        origin = str(job.run_dir / "snapshots" / f"step-{begins}")
        again = job.run(
            f"name={name}", f"steps={ends + 1}", f"roles.trainer.world_size={size}", *always, "--resume", origin
        )
        assert again.returncode == 0, again.stdout + again.stderr
        lines = (job.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        for line in map(json.loads, lines):
            assert found[line["step"]] == pytest.approx(line["loss"], abs=1e-5)
        assert len(lines) == ends - begins


BANS = '''
from rolemesh import FailoverLevel, RecoveryPlan, hookimpl


class Bans(FailoverLevel):
    """Bans the node of a rank that fails."""

    scope = "node"

    @hookimpl
    def recover(self, failure, view):
        here = [ref for rank in view.ranks if rank.node == failure.node for ref in view.group(*rank.ref)]
        return RecoveryPlan(tuple(here), wait_s=5, reason="it failed", ban={failure.node: 600.0})
'''


@pytest.mark.soak
def test_ranks_that_a_role_gets_later_do_not_come_to_a_banned_node(make_job: Callable[..., Job]) -> None:
    job = make_job(backend=("--backend", "local", "--nodes", "3x(cpu=2)"), extra=LADDER)
    (job.folder / "bans.py").write_text(BANS)
    own = '{use: "bans.py:Bans"}, {use: process}'
    copies = "engine.options.snapshots.replicas=1"
    process = job.start(*SLOW, f"failover=[{own}]", copies, "roles.work.resources.cpu=1")
    ranks = {f"{rank.role}/{rank.rank}": rank for rank in job.running(3).ranks}
    banned = ranks["work/0"].node
    os.kill(ranks["work/0"].pid, signal.SIGKILL)
    until(lambda: of_kind(job, "recovered"), "its ranks are elsewhere")
    scaled(job, work=3)
    status = job.running()
    assert banned not in {rank.node for rank in status.ranks}
    assert any(f"no rank is placed on node {banned} for another" in text for text in status.warnings)
    with ControlClient(job.run_dir) as client:
        client.ask(ResizeJob({"work": 5}, "the test"))
    until(lambda: of_kind(job, "resize_refused"), "there is room on the banned node only")
    drained(job)
    out, _ = process.communicate()
    assert process.returncode == 0, out
