"""The restarts after a death, the culprit of a hang, and the end of a ladder, as the journal records them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.harness import ChaosJob
from tests.e2e.harness import Job
from tests.e2e.ladder import ENDLESS, LADDER, SLOW, STEPS, ended_well, launched, of_kind, pids, recovered, total
from tests.waiting import until

from rolemesh.api.observer import JobStatus
from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

Make = Callable[..., Job]


def kill_all(status: JobStatus) -> None:
    """An agent, and what would live on without it."""
    os.kill(status.agents[0].pid, signal.SIGKILL)
    for pid in pids(status).values():
        os.kill(pid, signal.SIGKILL)


# -------------------------------------------------------------------------------------------------------- blast radius


@pytest.mark.parametrize(
    "victim", ["work/1", *(pytest.param(name, marks=pytest.mark.soak) for name in ("source/0", "sink/0"))]
)
def test_a_killed_independent_rank_is_restarted_alone(make_job: Make, victim: str) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = pids(job.running(10))
    os.kill(before[victim], signal.SIGKILL)
    after = pids(recovered(job))
    assert {name for name in before if after[name] != before[name]} == {victim}
    ended_well(job, process)
    assert launched(job) == [[victim]]
    (recovery,) = job.result()["recoveries"]
    assert (recovery["level"], recovery["outcome"], recovery["restarted"]) == ("process", "recovered", [victim])


def test_a_killed_rank_of_a_collective_group_takes_exactly_that_group_along(tmp_path: Any) -> None:
    job = ChaosJob(tmp_path, "group", ("--backend", "local"))
    process = job.start()
    before = pids(job.running(3))
    os.kill(before["trainer/1"], signal.SIGKILL)
    after = pids(recovered(job))
    assert {name for name in before if after[name] != before[name]} == {"trainer/0", "trainer/1"}
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(job) == [["trainer/0", "trainer/1"]]


def test_a_dead_master_costs_no_rank_and_steps_go_on_without_it(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    progress = job.folder / "progress"
    roles = (job.folder / "roles.py").read_text()
    (job.folder / "roles.py").write_text(
        roles.replace(
            "        self.calls += 1\n",
            f"        self.calls += 1\n        print(self.calls, file=open({str(progress)!r}, 'a'))\n",
        )
    )
    process = job.start(*SLOW, "roles.work.options.kwargs.sleep=0.1")
    status = job.running(5)
    os.kill(status.master_pid, signal.SIGSTOP)
    reached = len(progress.read_text().splitlines())
    until(lambda: len(progress.read_text().splitlines()) >= reached + 10, "ten steps without a master")
    with contextlib.suppress(ProcessLookupError):  # on a busy machine its supervisor has missed it first, and killed it
        os.kill(status.master_pid, signal.SIGKILL)
    until(lambda: of_kind(job, "master_recovered"), "another master")
    after = job.running()
    assert after.epoch == 2
    assert after.master_pid != status.master_pid
    assert pids(after) == pids(status)
    ended_well(job, process)
    assert launched(job) == []
    assert job.result()["recoveries"] == []


# ------------------------------------------------------------------------------------------------------------- endings


def test_an_exception_that_comes_again_at_the_same_step_ends_the_job_at_once(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    failed = job.run("roles.work.options.kwargs.fail_at=7", "roles.work.options.kwargs.on_rank=1")
    assert failed.returncode == 1
    result = job.result()
    assert (result["failure"]["role"], result["failure"]["rank"], result["failure"]["step"]) == ("work", 1, 7)
    assert "square" in result["failure"]["operator"]
    assert "return self.broken(rows)" in result["failure"]["traceback"]
    assert launched(job) == [["work/1"]]
    out = failed.stdout + failed.stderr
    assert "no such column" in out
    assert "for the second time at step 7" in out
    assert "process" in out
    assert "roles.py" in out


def test_an_exhausted_ladder_lists_the_attempts_of_every_level(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    failed = job.run(
        "roles.work.options.kwargs.die_at=7",
        "failover=[{use: process, options: {max_attempts: 2}}, {use: job, options: {max_attempts: 1}}]",
    )
    assert failed.returncode == 1
    assert [r["level"] for r in job.result()["recoveries"]] == ["process", "process", "job"]
    (exhausted,) = of_kind(job, "ladder_exhausted")
    trail = "\n".join(exhausted["data"]["trail"])
    assert "work, rank 0" in trail
    assert "process" in trail
    assert "job" in trail
    for line in exhausted["data"]["trail"]:
        assert line.split()[0] in failed.stdout + failed.stderr
    assert job.result()["failure"]["role"] == "work"


@pytest.mark.soak  # the simulation stops jobs there
def test_a_job_that_is_stopped_while_a_rank_is_brought_back_ends(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*ENDLESS)
    kill_all(job.running(5))
    until(lambda: of_kind(job, "recovery_planned"), "a recovery")
    assert job.cli("stop", "squares").returncode == 0
    process.communicate()
    assert job.result()["status"] == "interrupted"


@pytest.mark.soak  # the simulation kills ranks there in every run
def test_a_rank_that_had_finished_is_brought_back_while_the_others_end(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    roles = job.folder / "roles.py"
    slow = roles.read_text().replace(
        "    def add(self, rows):\n", "    def add(self, rows):\n        time.sleep(0.8)\n"
    )
    roles.write_text(slow)
    process = job.start("steps=12")
    source = until(
        lambda: next((r for r in job.running().ranks if r.role == "source" and r.state == "done"), None),
        "source is done",
    )
    os.kill(source.pid, signal.SIGKILL)
    ended_well(job, process, 12)
    assert of_kind(job, "failure")


# -------------------------------------------------------------------------------------------------- failures in series


@pytest.mark.soak
def test_a_fault_that_lasts_for_seconds_does_not_use_up_the_ladder(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    gone = job.folder / "gone"
    roles = (job.folder / "roles.py").read_text()
    starts = "        self.ctx, self.sleep = ctx, sleep\n"
    (job.folder / "roles.py").write_text(
        roles.replace(starts, f"{starts}        if os.path.exists({str(gone)!r}):\n            os._exit(3)\n")
    )
    process = job.start(*SLOW, "failover=[{use: process}, {use: job}]")
    status = job.running(10)
    gone.touch()
    os.kill(pids(status)["work/0"], signal.SIGKILL)
    until(lambda: any(e["data"]["attempt"] == 5 for e in of_kind(job, "recovery_planned")), "five attempts")
    others = pids(job.running())
    (warning,) = job.running().warnings
    assert "work/0 waits" in warning
    assert "of 4 s before attempt 5" in warning
    gone.unlink()
    out = ended_well(job, process)
    assert "waiting 4 s before attempt 5, restarting work/0" in out
    assert [e["data"]["plan"]["delay_s"] for e in of_kind(job, "recovery_planned")] == [0, 0.5, 1, 2, 4]
    assert {one["level"] for one in job.result()["recoveries"]} == {"process"}
    assert len(others) == 4


@pytest.mark.soak
def test_an_agent_that_is_told_to_end_and_then_killed_costs_nothing_where_its_ranks_have_no_other_place(
    make_job: Make,
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = pids(status := job.running(10))
    os.kill(status.agents[0].pid, signal.SIGTERM)
    until(lambda: of_kind(job, "drain_waiting"), "there is no other node")
    os.kill(status.agents[0].pid, signal.SIGKILL)
    until(lambda: of_kind(job, "drain_over"), "its agent is there again")
    assert pids(job.running()) == before
    assert "was told to end" in ended_well(job, process)
    assert not of_kind(job, "failure", "agent_lost", "recovery_planned")


@pytest.mark.soak
def test_an_agent_that_is_killed_twice_in_a_row_comes_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    first = job.running(10).agents[0].pid
    os.kill(first, signal.SIGKILL)
    second = until(
        lambda: next((e["data"]["pid"] for e in of_kind(job, "agent_up") if e["data"]["pid"] != first), 0),
        "a new agent",
    )
    os.kill(second, signal.SIGKILL)
    ended_well(job, process)
    assert len(of_kind(job, "agent_died")) == 2


def test_a_rank_that_is_killed_while_it_is_brought_back_comes_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = pids(job.running(10))
    os.kill(before["work/0"], signal.SIGKILL)
    second = until(
        lambda: next((e["data"]["pid"] for e in of_kind(job, "rank_up") if e["data"]["generation"] == 1), 0),
        "the rank's second process",
    )
    os.kill(second, signal.SIGKILL)
    os.kill(before["sink/0"], signal.SIGKILL)
    ended_well(job, process)
    assert {name for names in launched(job) for name in names} == {"work/0", "sink/0"}


def test_master_agent_and_rank_that_die_together_come_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    status = job.running(10)
    for pid in (status.ranks[0].pid, status.master_pid, status.agents[0].pid):
        os.kill(pid, signal.SIGKILL)
    ended_well(job, process)
    assert of_kind(job, "master_recovered")


@pytest.mark.soak
def test_a_job_with_the_job_level_alone_goes_back_to_the_disk(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW, "failover=[{use: job}]")
    before = pids(job.running(12))
    os.kill(before["sink/0"], signal.SIGKILL)
    after = pids(recovered(job))
    assert all(after[name] != before[name] for name in before)
    ended_well(job, process)
    (back,) = of_kind(job, "rolled_back")
    assert back["data"]["step"] % 5 == 4


@pytest.mark.soak
def test_a_job_can_be_watched_while_it_is_brought_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*ENDLESS)
    kill_all(job.running(5))
    until(lambda: of_kind(job, "recovery_planned"), "a recovery")
    watcher = subprocess.Popen(job.command("attach", "squares"), cwd=job.folder, stdout=subprocess.PIPE, text=True)
    shown = job.cli("status", "squares", "--json")
    assert shown.returncode == 0, shown.stderr
    assert {r["role"] for r in json.loads(shown.stdout)["ranks"]} == {"source", "work", "sink"}
    events = job.cli("events", "squares")
    assert "recovery" in events.stdout
    recovered(job)
    assert job.cli("stop", "squares").returncode == 0
    process.communicate()
    out, _ = watcher.communicate()
    assert watcher.returncode is not None
    assert "ready again" in out


# --------------------------------------------------------------------------------------------------------------- hangs


def test_a_stopped_rank_is_named_with_its_stacks_and_brought_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW, "engine.options.hang.after_s=3")
    before = pids(job.running(10))
    os.kill(before["work/1"], signal.SIGSTOP)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    (hang,) = of_kind(job, "hang")
    assert (hang["data"]["role"], hang["data"]["rank"]) == ("work", 1)
    # Where in its step the signal has met it is chance.
    assert "(stopped by a signal)" in hang["data"]["stacks"]
    assert "rank/main.py" in hang["data"]["stacks"]
    assert hang["data"]["text"] in out
    assert launched(job) == [["work/1"]]
    assert job.metrics()[-1]["reward"] == total(STEPS)


BLOCKS = """
        if self.ctx.step == 7 and self.ctx.rank == 0 and not (once and os.path.exists(once)):
            import threading
            once and open(once, "w").close()
            held = threading.Lock()
            held.acquire()
            self.wait_forever(held)
"""


def blocking(job: Job, once: bool) -> None:
    """Let rank 0 of work block in a lock of its own, the first time only or every time."""
    roles = (job.folder / "roles.py").read_text()
    marker = str(job.folder / "blocked") if once else ""
    roles = roles.replace(
        "        time.sleep(self.sleep)\n", f"        once = {marker!r}\n{BLOCKS}        time.sleep(self.sleep)\n"
    ).replace("    def broken(", "    def wait_forever(self, held):\n        held.acquire()\n\n    def broken(")
    (job.folder / "roles.py").write_text(roles)


@pytest.mark.soak
def test_an_operator_that_blocks_in_a_lock_is_found_and_restarted(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    blocking(job, once=True)
    done = job.run("engine.options.hang.after_s=2")
    assert done.returncode == 0, done.stdout + done.stderr
    (hang,) = of_kind(job, "hang")
    assert (hang["data"]["role"], hang["data"]["rank"], hang["data"]["step"]) == ("work", 0, 7)
    assert "wait_forever" in hang["data"]["stacks"]
    assert "wait_forever" in done.stdout + done.stderr
    assert job.metrics()[-1]["reward"] == total(20)


@pytest.mark.soak
def test_an_operator_that_blocks_every_time_ends_the_job(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    blocking(job, once=False)
    failed = job.run("engine.options.hang.after_s=2", "failover=[{use: process, options: {max_attempts: 1}}]")
    assert failed.returncode == 1
    failure = job.result()["failure"]
    assert (failure["cause"], failure["role"], failure["rank"], failure["step"]) == ("hang", "work", 0, 7)
    assert "wait_forever" in failed.stdout + failed.stderr
    assert len(of_kind(job, "hang")) == 2


@pytest.mark.soak
def test_an_operator_that_takes_three_times_what_is_allowed_comes_through(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    roles = (job.folder / "roles.py").read_text()
    slow = "        time.sleep(3.2 if self.ctx.step in (7, 12) and self.ctx.rank == 0 else 0)\n"
    (job.folder / "roles.py").write_text(roles.replace("        time.sleep(self.sleep)\n", slow))
    done = job.run("engine.options.hang.after_s=1", "failover=[{use: process}]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(hang["data"]["step"], hang["data"]["next_s"]) for hang in of_kind(job, "hang")] == [(7, 2), (7, 4)]
    (proved,) = of_kind(job, "slow_operator")
    assert proved["data"]["step"] == 7
    assert "came through" in done.stdout + done.stderr
    assert job.metrics()[-1]["reward"] == total(20)


# ---------------------------------------------------------------------------------------------------------- rehearsals


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--chaos", "kills=many"), ("--chaos", "'many'", "kills=10")),
        (("--chaos", "kils=3"), ("--chaos", "'kils'", "kills")),
        (("--chaos", "targets=rank,agnet"), ("--chaos", "'agnet'", "agent")),
        (("--chaos", "kills=1", "--detach"), ("--chaos", "--detach")),
        (("--chaos", "kills=1", "--engine=inline"), ("--chaos", "--engine inline")),
        (("--chaos-compare",), ("--chaos-compare", "--chaos kills=5")),
        (("--chaos", "targets=stop", "engine.options.hang.after_s=null"), ("stopped rank", "hang.after_s")),
        (("--chaos", "targets=node"), ("only node", "targets")),
        (("--chaos", "kills=1", "failover=[]"), ("no failover level", "failover")),
    ],
)
def test_a_rehearsal_that_makes_no_sense_is_refused(
    make_job: Make, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    job = make_job(extra=LADDER)
    if "--engine=inline" in args:
        job.backend = ()
    refused = job.run(*args)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    for word in words:
        assert word in refused.stderr
    assert not job.run_dir.exists()


@pytest.mark.soak  # `tests/chaos/test_kills.py` has one in every test run
def test_a_rehearsal_with_every_target_ends_exactly_as_an_undisturbed_run(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    chaos = "kills=8,seed=5,targets=rank,agent,master,stop,disk,node"
    done = job.run(
        *SLOW,
        "engine.options.hang.after_s=2",
        "--nodes",
        "4x(cpu=1)",
        "roles.sink.resources.cpu=0.9",
        "engine.options.snapshots.replicas=1",
        "failover=[{use: process, options: {max_attempts: 20}}, {use: node, options: {when_full: fail}}, {use: job}]",
        "--chaos",
        chaos,
        "--chaos-compare",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended exactly as the undisturbed one" in done.stdout
    assert "goodput" in done.stdout
    assert "rehearsal: 8 failures injected" in done.stdout


def test_a_raised_and_an_exited_rank_are_brought_back(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    job.running(10)
    for times, kind in enumerate(("raise", "exit"), start=1):
        with ControlClient(job.run_dir) as client:
            client.ask(InjectFault(kind, "work/0"))
        recovered(job, times)
    ended_well(job, process)
    assert [r["causes"] for r in job.result()["recoveries"]] == [["exception"], ["exit"]]


@pytest.mark.soak
def test_a_comparison_of_jobs_without_state_says_that_it_compared_nothing(make_job: Make) -> None:
    job = make_job()
    (job.folder / "flow.py").write_text(
        "import rolemesh\n\n\n@rolemesh.flow\ndef squares(job):\n    job.numbers.number()\n"
    )
    (job.folder / "roles.py").write_text("def number():\n    return 1\n")
    (job.folder / "job.yaml").write_text(
        "name: squares\nflow: flow.py:squares\nsteps: 3\nfailover: [{use: process}]\n"
        "roles: {numbers: {use: function, options: {target: 'roles.py:number'}}}\n"
    )
    done = job.run("--chaos", "kills=0", "--chaos-compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was compared: no role keeps a state" in done.stderr
    assert "ended exactly" not in done.stdout
