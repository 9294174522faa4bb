"""The small real job in two parts: the second goes on from the first one's disk, and the model can be taken out."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.chaos.harness import SHARDS, STEPS, ChaosJob, End, timeless

from rolemesh_checkpoint import disk
from rolemesh_checkpoint.reshard import merge

Make = Callable[..., ChaosJob]
FIRST = 13


@pytest.mark.slow
@pytest.mark.soak  # `tests/e2e/test_resume.py` has the parts of it in every test run
def test_a_job_in_two_parts_ends_as_one_in_one_go_also_with_another_rollout_rank(
    make_job: Make, undisturbed: End
) -> None:
    job = make_job("parts")
    first = job.run(f"steps={FIRST}")
    assert first.returncode == 0, first.stdout + first.stderr
    shards = [shard for line in job.metrics() for shard in line["records"]["shards"]]
    exported(job)
    second = job.run("--resume", "parts", "roles.rollout.world_size=2")
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"resuming after step {FIRST - 1}" in second.stderr
    for role in ("trainer", "data", "reward"):
        assert job.result()["state_sha256"][role] == undisturbed.sha256[role]
    lines = job.metrics()
    assert [line["step"] for line in lines] == list(range(FIRST, STEPS))
    for line, other in zip(lines, undisturbed.lines[FIRST:], strict=True):
        assert timeless(line) == timeless(other)
    assert sorted(shards + [shard for line in lines for shard in line["records"]["shards"]]) == SHARDS


def exported(job: ChaosJob) -> None:
    """`rolemesh checkpoint export` gives a model's folder with the weights that the last snapshot has."""
    done = job.cli("checkpoint", "export", "parts", "--out", "model", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["step"], told["role"]) == (FIRST - 1, "trainer")
    folder = job.folder / "model"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    weights = load_file(folder / "model.safetensors")
    found, _ = disk.newest_intact(job.run_dir)
    assert found is not None
    stored = merge(disk.states(found.path, "trainer"))["model"]
    assert weights
    for name, tensor in weights.items():
        assert np.array_equal(tensor, np.asarray(stored[name])), name
