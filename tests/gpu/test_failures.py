"""Failures on a device: the messages for the user, and jobs that go on if they can."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from tests.e2e.harness import Job

Make = Callable[..., Job]


def run(job: Job, device: str, what: str, *args: str, once: bool = True) -> subprocess.CompletedProcess[str]:
    gpu = 1 if device == "cuda" else 0
    options = f'{{target: "roles.py:Faulty", kwargs: {{what: {what}, once: {str(once).lower()}}}}}'
    role = f"roles.faulty={{use: function, resources: {{cpu: 0.2, gpu: {gpu}}}, options: {options}}}"
    path = job.folder / "job.yaml"
    head, _, tail = path.read_text().partition("  trainer:")
    path.write_text(f"{head}{tail[tail.index('failover:') :]}")
    done = job.run("flow=flow.py:faulty", "steps=10", role, *args)
    print(done.stdout, done.stderr)
    return done


def test_a_rank_that_runs_out_of_device_memory_once_starts_again(gpu_job: Make, device: str) -> None:
    done = run(gpu_job("memory"), device, "memory")
    assert done.returncode == 0
    assert "CUDA out of memory. Tried to allocate" in done.stdout


def test_a_job_that_always_runs_out_of_device_memory_says_so(gpu_job: Make, device: str) -> None:
    ladder = "failover=[{use: process, options: {max_attempts: 2}}]"
    done = run(gpu_job("always"), device, "memory", ladder, once=False)
    assert done.returncode == 1
    assert "out of memory on the GPU" in done.stdout + done.stderr


def test_a_kernel_that_never_ends_is_a_hang_and_the_rank_starts_again(gpu_job: Make, device: str) -> None:
    done = run(gpu_job("hang"), device, "hang", "engine.options.hang.after_s=8")
    assert done.returncode == 0
    assert "hang: faulty/0 has been in take at step 3" in done.stdout
    assert "roles.py" in done.stdout


@pytest.mark.only_gpu
def test_a_kernel_that_writes_where_it_must_not_costs_one_restart(gpu_job: Make, device: str) -> None:
    done = run(gpu_job("illegal"), device, "illegal")
    assert done.returncode == 0
    assert "a CUDA kernel crashed" in done.stdout


def test_a_token_beyond_the_vocabulary_is_named_as_what_it_is(gpu_job: Make, device: str) -> None:
    done = (job := gpu_job("far")).run("roles.rows.options.kwargs={far: 3}")
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    if device == "cuda":
        assert "an index out of range, such as a token id" in said
    assert "step 3" in said
    assert job.result()["status"] == "failed"


@pytest.mark.only_gpu
def test_two_ranks_of_a_group_on_one_device_are_refused_with_a_remedy(gpu_job: Make) -> None:
    done = gpu_job("two").run("roles.trainer.world_size=2", "failover=[]")
    print(done.stdout, done.stderr)
    assert done.returncode != 0
    assert "share" in done.stdout + done.stderr
