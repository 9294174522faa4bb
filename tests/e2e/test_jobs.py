"""Behaviour of every job on either backend: files, results, faults, ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.e2e.harness import Job, leftovers
from tests.waiting import until

Make = Callable[..., Job]


def expected_total(steps: int) -> float:
    return float(sum(x * x for x in range(6 * steps)))


def test_a_job_ends_done_and_leaves_its_files(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    result = job.result()
    assert (result["status"], result["committed_steps"]) == ("done", 20)
    assert result["state_sha256"]["work"] is None
    assert len(result["state_sha256"]["sink"]) == 64
    assert result["plugins"]["function"]["distribution"] == "rolemesh-function"
    assert result["wall_s"] > 0
    metrics = job.metrics()
    assert [line["step"] for line in metrics] == list(range(20))
    assert metrics[-1]["reward"] == expected_total(20)
    assert metrics[3]["operators"]["work.square"] == {"largest": pytest.approx((3 * 6 + 2 + 3 * 6 + 5) / 2), "rows": 6}
    assert set(metrics[0]["roles"]) == {"source", "work", "sink"}
    assert set(metrics[0]["roles"]["work"]) == {"computing_s", "waiting_s", "blocked_s"}
    kinds = [event["kind"] for event in job.events()]
    assert kinds[0] == "job_started"
    assert kinds[-1] == "job_ended"
    assert [event["seq"] for event in job.events()] == list(range(1, len(kinds) + 1))
    for name in ("job.yaml", "plan.json", "logs/work-1.log"):
        assert (job.run_dir / name).exists(), name
    assert not (job.run_dir / "control.json").exists()


@pytest.mark.more
def test_two_runs_with_one_seed_end_with_the_same_state(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    assert job.run().returncode == 0
    first = job.result()
    again = job.run()
    assert again.returncode == 0
    assert f"the run before is now in {job.folder / 'runs' / '.earlier'}" in again.stderr
    assert job.result()["state_sha256"] == first["state_sha256"]
    assert job.result()["job_id"] != first["job_id"]
    earlier = list((job.folder / "runs" / ".earlier").glob("squares-*/result.json"))
    assert [json.loads(path.read_text())["job_id"] for path in earlier] == [first["job_id"]]


def test_an_exception_in_an_operator_ends_the_job_with_the_users_traceback(
    make_job: Make, backend: tuple[str, ...]
) -> None:
    job = make_job(backend=backend)
    failed = job.run("roles.work.options.kwargs.fail_at=3", "roles.work.options.kwargs.on_rank=1", once_told(job))
    assert failed.returncode == 1
    failure = job.result()["failure"]
    assert (failure["role"], failure["rank"], failure["step"]) == ("work", 1, 3)
    assert failure["operator"] in ("square", "work.square")
    assert "return self.broken(rows)" in failure["traceback"]
    assert "KeyError: \"no such column: 'z'\"" in failure["traceback"]
    assert "rolemesh/" not in failure["traceback"]
    out = failed.stdout + failed.stderr
    assert "no such column" in out
    assert "broken" in out
    events = job.events()
    ended = next(e["time"] for e in events if e["kind"] == "job_ended")
    failed_at = next(e["time"] for e in events if e["kind"] == "failure")
    assert ended >= failed_at
    assert (job.run_dir / "logs" / "work-1.log").read_text().count("KeyError") >= 1
    assert_has_lines_of_finished_steps(job)


def once_told(job: Job) -> str:
    """The override with which a rank fails after the master has told of a step."""
    return f"roles.work.options.kwargs.awaited={job.run_dir / 'metrics.jsonl'}"


def assert_has_lines_of_finished_steps(job: Job) -> None:
    lines = [line["step"] for line in job.metrics()]
    assert lines == list(range(len(lines)))
    assert lines
    assert len(lines) >= job.result()["committed_steps"]


def test_a_rank_that_is_killed_ends_the_job_and_is_named(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    failed = job.run("roles.work.options.kwargs.die_at=5", once_told(job))
    assert failed.returncode == 1
    failure = job.result()["failure"]
    assert (failure["cause"], failure["role"], failure["rank"], failure["signal"]) == ("signal", "work", 0, 9)
    assert "work" in failed.stdout + failed.stderr
    assert "SIGKILL" in failed.stdout + failed.stderr
    assert_has_lines_of_finished_steps(job)


def test_ranks_that_end_with_their_agent_end_the_job_and_are_named(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    process = job.start("steps=100000", "roles.work.options.kwargs.sleep=0.01")
    status = job.running(3)
    os.kill(status.agents[0].pid, signal.SIGKILL)
    for rank in status.ranks:
        os.kill(rank.pid, signal.SIGKILL)
    assert process.wait() == 1
    failure = job.result()["failure"]
    assert failure["cause"] in ("agent_lost", "signal")
    assert failure["node"] == status.agents[0].node


def test_ctrl_c_ends_the_job_with_130(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    process = job.start("steps=100000", "roles.work.options.kwargs.sleep=0.01")
    job.running(3)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert job.result()["status"] == "interrupted"


def test_ctrl_c_while_the_job_starts_leaves_nothing(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    process = job.start("steps=100000")
    until(lambda: (job.run_dir / "control.json").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_a_driver_that_is_stopped_keeps_its_job(make_job: Make, backend: tuple[str, ...]) -> None:
    """As by Ctrl-Z, for longer than its lease."""
    job = make_job(backend=backend)
    pause = ("steps=null", "roles.work.options.kwargs.sleep=0.05", "engine.options.lease_s=5")
    driver = job.start(*pause)
    until(lambda: (job.run_dir / "metrics.jsonl").exists() and job.metrics(), "the first step")
    driver.send_signal(signal.SIGSTOP)
    time.sleep(9)
    steps = len(job.metrics())
    until(lambda: len(job.metrics()) > steps, "the job goes on")
    driver.send_signal(signal.SIGCONT)
    assert job.cli("stop", job.name).returncode == 0
    assert driver.wait() == 130
    assert "driver" not in job.result()["message"]


def test_a_driver_that_is_killed_takes_its_job_with_it(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    process = job.start("steps=100000", "roles.work.options.kwargs.sleep=0.01")
    job.running(3)
    process.kill()
    process.wait()
    until(lambda: (job.run_dir / "result.json").exists(), "the lease ends the job")
    assert job.result()["status"] == "interrupted"
    assert "driver" in job.result()["message"]


def test_a_detached_job_can_be_seen_attached_to_and_stopped(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    endless = ("steps=100000", "roles.work.options.kwargs.sleep=0.01")
    returned = job.run("--detach", "engine.options.lease_s=1", *endless)
    assert returned.returncode == 0, returned.stdout + returned.stderr
    time.sleep(2.0)  # longer than the lease: nobody owns it any more
    shown = job.cli("status", "squares", "--json")
    assert shown.returncode == 0, shown.stderr
    status = json.loads(shown.stdout)
    assert {r["role"] for r in status["ranks"]} == {"source", "work", "sink"}
    assert all(r["pid"] > 0 for r in status["ranks"])
    in_use = job.run()
    assert in_use.returncode == 2
    assert "squares" in in_use.stderr
    assert "rolemesh stop" in in_use.stderr
    watcher = subprocess.Popen(job.command("attach", "squares"), cwd=job.folder, stdout=subprocess.PIPE, text=True)
    assert watcher.stdout is not None
    assert watcher.stdout.readline()
    stopped = job.cli("stop", "squares")
    assert stopped.returncode == 0, stopped.stderr
    watcher.stdout.read()
    watcher.wait()
    assert job.result()["status"] == "interrupted"
    log = job.cli("logs", "squares", "work/1")
    assert log.returncode == 0


def test_processes_say_in_ps_what_they_are_of_which_job(make_job: Make) -> None:
    job = make_job(backend=("--backend", "local"))
    job.start("steps=100000", "roles.work.options.kwargs.sleep=0.01")
    status = job.running()
    processes = {"master": status.master_pid} | {agent.agent: agent.pid for agent in status.agents}
    processes |= {str(rank.ref): rank.pid for rank in status.ranks}
    for what, pid in processes.items():
        assert " ".join(psutil.Process(pid).cmdline()).strip() == f"rolemesh: {status.name} {what}"
    assert any(f"rolemesh: {status.name} supervisor" in found for found in leftovers(job.ids()))


@pytest.mark.more
def test_jobs_run_side_by_side(make_job: Make, backend: tuple[str, ...]) -> None:
    jobs = [make_job(name, backend) for name in ("one", "two")]
    processes = [job.start("steps=200") for job in jobs]
    assert [process.wait() for process in processes] == [0, 0]
    assert [job.result()["committed_steps"] for job in jobs] == [200, 200]


def test_events_and_logs_of_an_ended_job_can_be_read(make_job: Make) -> None:
    job = make_job()
    assert job.run().returncode == 0
    shown = job.cli("events", "squares", "--json")
    assert shown.returncode == 0, shown.stderr
    assert "job_ended" in shown.stdout
    listed = job.cli("status", "--json")
    assert listed.returncode == 0
    assert "squares" in listed.stdout


def test_emulated_nodes_talk_over_curve_and_agree_with_one_node(make_job: Make) -> None:
    job = make_job()
    assert job.run().returncode == 0
    alone = job.result()["state_sha256"]["sink"]
    spread = job.run("--nodes", "4x(cpu=1)", *(f"roles.{role}.resources.cpu=1" for role in ("source", "work", "sink")))
    assert spread.returncode == 0, spread.stdout + spread.stderr
    assert len({e["data"]["node"] for e in job.events() if e["kind"] == "rank_up"}) == 4
    assert job.result()["state_sha256"]["sink"] == alone


def test_inline_gives_the_same_state_as_processes(make_job: Make) -> None:
    job = make_job()
    assert job.run().returncode == 0
    processes = job.result()["state_sha256"]
    done = job.cli("run", "job.yaml", "--engine=inline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"the run before is now in .*/squares-[-0-9]+Z \([0-9,]+ kB\)\n", done.stdout + done.stderr)
    assert job.result()["state_sha256"] == processes
    assert job.metrics()[-1]["reward"] == expected_total(20)


def test_secrets_are_neither_journalled_nor_kept(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(extra="params: {}\n")
    text = (job.folder / "job.yaml").read_text().replace("kwargs: {}", "kwargs: {sleep: ${SLEEP} }")
    (job.folder / "job.yaml").write_text(text)
    monkeypatch.setenv("SLEEP", "0.0012345")
    assert job.run().returncode == 0
    kept = [p for p in job.run_dir.rglob("*") if p.is_file() and b"0.0012345" in p.read_bytes()]
    assert kept == []
    assert "${SLEEP}" in (job.run_dir / "job.yaml").read_text()


def test_a_child_that_user_code_started_is_gone_with_the_job(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    roles = (job.folder / "roles.py").read_text()
    (job.folder / "roles.py").write_text(
        roles.replace(
            "self.ctx, self.total, self.calls = ctx, 0.0, 0",
            "self.ctx, self.total, self.calls = ctx, 0.0, 0\n"
            "        import subprocess\n"
            "        subprocess.Popen(['sleep', '987'], start_new_session=True)",
        )
    )
    failed = job.run("roles.work.options.kwargs.die_at=5")
    assert failed.returncode == 1
    assert job.ids()
    until(lambda: not leftovers(job.ids()), "the child is gone")


def test_a_job_whose_roles_do_not_fit_starts_nothing(make_job: Make, backend: tuple[str, ...]) -> None:
    job = make_job(backend=backend)
    refused = job.run("roles.work.resources.cpu=64")
    assert refused.returncode == 2
    assert "work" in refused.stderr
    assert "64" in refused.stderr
    assert not (Path(job.run_dir) / "control.json").exists()


DAWDLER = """
import time

from rolemesh import operator


class Dawdler:
    @operator()
    def dawdle(self) -> None:
        print("begins", flush=True)
        try:
            time.sleep(600)
        finally:
            print("cleans up", flush=True)

    def teardown(self):
        print("teardown", flush=True)
"""


def test_a_stopped_jobs_workloads_clean_up_after_themselves(make_job: Callable[..., Job]) -> None:
    job = make_job()
    (job.folder / "roles.py").write_text(DAWDLER)
    (job.folder / "flow.py").write_text("from rolemesh import flow\n\n\n@flow\ndef f(job):\n    job.dawdler.dawdle()\n")
    roles = "roles: {dawdler: {use: function, options: {target: 'roles.py:Dawdler'}, resources: {cpu: 0.1}}}"
    (job.folder / "job.yaml").write_text(
        f"name: squares\nflow: flow.py:f\nsteps: 3\n{roles}\nengine: {{options: {{stop_grace_s: 4}}}}\n"
    )
    job.start("--detach")
    log = job.run_dir / "logs" / "dawdler-0.log"
    until(lambda: log.exists() and "begins" in log.read_text(), "it computes")
    assert job.cli("stop", "squares").returncode == 0
    assert log.read_text().split("\n")[:3] == ["begins", "cleans up", "teardown"]
