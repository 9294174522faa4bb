"""Jobs that end when somebody says so: a workload, a condition of the job file, a person; all ranks with one step."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, of_kind, total
from tests.waiting import until

from rolemesh_checkpoint import disk

Make = Callable[..., Job]
TALKERS = '''

class Talker(Sink):
    """Says when it has had enough, and writes down what it hears."""

    def __init__(self, ctx, finish_at=-1, long_s=0.0):
        super().__init__(ctx)
        self.finish_at, self.long_s = finish_at, long_s
        if finish_at == -2:
            ctx.finish("nothing to do")

    @operator(rows=Broadcast())
    def add(self, rows):
        super().add(rows)
        if self.ctx.step == self.finish_at:
            self.ctx.finish("enough")
        for i in range(10 if self.long_s and self.ctx.step == 3 else 0):
            self.ctx.progress(i, 10)
            time.sleep(self.long_s / 10)

    def committed(self, step):
        self.heard("committed", step)

    def persisted(self, step):
        self.heard("persisted", step)

    def heard(self, what, step):
        with open(self.ctx.base / f"{what}.txt", "a") as file:
            file.write(f"{step}\\n")
'''
SLOW = ("steps=null", "metrics.every=1", "roles.work.options.kwargs.sleep=0.02")


@pytest.fixture
def make_talker(make_job: Make) -> Make:
    def make(extra: str = LADDER, **kwargs: Any) -> Job:
        job = make_job(extra=extra)
        roles, file = job.folder / "roles.py", job.folder / "job.yaml"
        roles.write_text(roles.read_text() + TALKERS)
        text = file.read_text().replace('"roles.py:Sink"', f'"roles.py:Talker", kwargs: {json.dumps(kwargs)}')
        file.write_text(text)
        return job

    return make


def ended(job: Job, reason: str) -> int:
    """The last step of a job that has ended in good order, for this reason."""
    result = job.result()
    assert (result["status"], result["exit_code"]) == ("done", 0), result
    assert reason in result["reason"]
    (event,) = of_kind(job, "stop_point")
    last = int(event["data"]["step"])
    assert result["committed_steps"] == last + 1
    assert [line["step"] for line in job.metrics()] == list(range(last + 1))
    assert job.metrics()[-1]["reward"] == total(last + 1)
    assert {event["data"]["finished"] for event in of_kind(job, "rank_done")} == {last}
    return last


def newest(job: Job) -> int:
    found, damaged = disk.newest_intact(job.run_dir)
    assert found is not None
    assert not damaged
    return found.step


def heard(job: Job, what: str) -> list[int]:
    path = Path(job.folder, f"{what}.txt")
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize(
    "finish_at", [-2, pytest.param(0, marks=pytest.mark.soak), pytest.param(7, marks=pytest.mark.soak)]
)
def test_a_workload_ends_a_job_without_an_end_and_hears_that_all_is_on_disk(make_talker: Make, finish_at: int) -> None:
    job = make_talker(finish_at=finish_at)
    done = job.run("steps=null", "metrics.every=1")
    assert done.returncode == 0, done.stdout + done.stderr
    last = ended(job, "nothing to do" if finish_at < 0 else "sink/0: enough")
    assert last >= max(finish_at, 0)
    assert job.result()["steps"] is None
    assert newest(job) == last == job.result()["persisted_step"]
    assert str(1 << 60) not in done.stdout + (job.run_dir / "events.jsonl").read_text() + json.dumps(job.result())
    for what in ("committed", "persisted"):
        assert heard(job, what) == sorted(set(heard(job, what)))
        assert heard(job, what)[-1] == last


def test_a_job_is_drained_and_goes_on_after_its_last_step(make_talker: Make) -> None:
    job = make_talker()
    process = job.start(*SLOW)
    job.running(step=10)
    assert "running  " in (shown := job.cli("status", "squares").stdout)
    assert str(1 << 60) not in shown
    stopped = job.cli("stop", "squares", "--drain")
    assert stopped.returncode == 0, stopped.stderr
    out, _ = process.communicate()
    assert process.returncode == 0, out
    last = ended(job, "rolemesh stop --drain")
    assert newest(job) == last
    again = job.run("--resume", "squares", f"steps={last + 11}")
    assert again.returncode == 0, again.stdout + again.stderr
    assert job.result()["restored_step"] == last
    assert [line["step"] for line in job.metrics()] == list(range(last + 1, last + 11))
    assert job.metrics()[-1]["reward"] == total(last + 11)


@pytest.mark.soak
def test_the_last_step_is_the_same_for_the_next_master_and_for_a_rank_that_comes_back(make_talker: Make) -> None:
    job = make_talker(finish_at=40)
    process = job.start(*SLOW)
    job.running()
    until(lambda: of_kind(job, "stop_point"), "the last step is decided")
    status = job.status()
    assert status is not None
    os.kill(status.master_pid, signal.SIGKILL)
    rank = next(rank for rank in status.ranks if rank.role == "work")
    os.kill(rank.pid, signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert of_kind(job, "master_recovered")
    last = ended(job, "sink/0: enough")
    assert newest(job) == last


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("metric: reward, at_least: 5000", "reward = "),
        pytest.param("max_s: 3", "3 s have passed", marks=pytest.mark.soak),
    ],
)
def test_a_condition_ends_a_job(make_talker: Make, condition: str, reason: str) -> None:
    job = make_talker(LADDER + f"until: {{{condition}}}\n")
    done = job.run(*SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    ended(job, reason)
    assert job.metrics()[-1]["reward"] >= (5000 if "reward" in reason else 0)


@pytest.mark.soak
def test_a_job_without_snapshots_and_with_a_number_of_steps_ends_early_too(make_talker: Make) -> None:
    job = make_talker("", finish_at=5)
    done = job.run("steps=100000", "roles.work.options.kwargs.sleep=0.02", "metrics.every=7")
    assert done.returncode == 0, done.stdout + done.stderr
    result = job.result()
    assert (result["status"], result["steps"], result["reason"]) == ("done", 100000, "sink/0: enough")
    assert job.metrics()[-1]["step"] == result["committed_steps"] - 1 < 100000 - 1


@pytest.mark.soak
def test_an_operator_that_tells_of_its_progress_does_not_hang(make_talker: Make) -> None:
    job = make_talker(LADDER.replace("60", "2"), finish_at=6, long_s=8.0)
    process = job.start("steps=null")
    seen: set[str] = set()

    def told() -> bool:
        status = job.status()
        seen.update(rank.doing for rank in status.ranks if rank.role == "sink") if status else None
        return any("/10" in doing for doing in seen)

    until(told, "its progress is shown")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    ended(job, "enough")
    assert not of_kind(job, "hang", "failure")


def test_in_one_process_the_job_ends_after_the_step_in_which_it_is_said(make_talker: Make) -> None:
    job = make_talker("", finish_at=5)
    done = job.cli("run", "job.yaml", "--engine=inline", "steps=null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (job.result()["committed_steps"], job.result()["reason"]) == (6, "sink/0: enough")
    assert heard(job, "committed") == list(range(6))


def test_invalid_conditions_are_refused(make_talker: Make) -> None:
    job = make_talker("until: {metric: reward}\n")
    assert "a metric and at_least or at_most go together" in job.cli("validate", "job.yaml").stderr
