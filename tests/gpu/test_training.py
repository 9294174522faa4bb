"""A trainer on the device ends with the same bits, whatever is killed on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.harness import Job

Make = Callable[..., Job]
TRAINERS = {
    "plain": (),
    "fsdp2-nccl": ("roles.trainer.options.dtype=bfloat16",),
    "ddp": ("roles.trainer.use=ddp", "roles.trainer.options.dtype=bfloat16"),
    "packed": ("roles.trainer.options.loss=losses.py:answers",),
    "packed-bf16": ("roles.trainer.options.loss=losses.py:answers", "roles.trainer.options.dtype=bfloat16"),
    "dropout": ("roles.trainer.options.dropout=true", "roles.trainer.options.dtype=bfloat16"),
    "checkpointing": ("roles.trainer.options.gradient_checkpointing=true", "roles.trainer.options.micro_batch_rows=2"),
}


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_trainer_whose_processes_are_killed_ends_bit_for_bit_as_without(gpu_job: Make, kind: str) -> None:
    job = gpu_job("killed")
    if kind == "dropout":
        config = job.folder / "model/config.json"
        config.write_text(config.read_text().replace("}", ', "attention_dropout": 0.1}'))
    done = job.run(*TRAINERS[kind], "--chaos", "kills=3,seed=1,targets=rank", "--chaos-compare")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "ended exactly as the undisturbed one" in done.stdout


def test_a_job_goes_on_from_its_snapshot_on_disk(gpu_job: Make) -> None:
    job = gpu_job("resumed")
    whole = job.run("steps=20")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    expected = job.result()["state_sha256"]
    assert job.run("steps=10", "name=part").returncode == 0
    job.name = "part"
    done = job.run("--resume", "part", "steps=20", "name=part")
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["state_sha256"] == expected
