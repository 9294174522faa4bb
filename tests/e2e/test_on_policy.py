"""A bounded lag of 0 is on-policy: the job ends with the bits of the synchronous flow, and every token has lag 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.harness import Job, nothing_is_left

STEPS = 4
ROLES = '''
import hashlib

import numpy as np

from rolemesh import Batch, Ragged


class Rollout:
    """Makes rows that depend on every bit of its weights."""

    deterministic = True

    def __init__(self, ctx):
        self.ctx, self.seed, self.version = ctx, 0, 0

    def load(self, weights) -> None:
        digest = hashlib.sha256(b"".join(np.asarray(weights[name]).tobytes() for name in sorted(weights)))
        self.seed, self.version = int.from_bytes(digest.digest()[:4], "little"), int(weights["__version__"][0])

    def sample(self):
        rng = np.random.default_rng(self.seed)
        tokens = [rng.integers(0, 32, size=n) for n in rng.integers(2, 9, size=8)]
        each = lambda rows, dtype: Ragged.from_rows(rows, dtype)
        return Batch({
            "prompt_ids": each([rng.integers(0, 32, size=5)] * 8, np.int32),
            "completion_ids": each(tokens, np.int32),
            "completion_mask": each([np.arange(len(row)) % 3 != 1 for row in tokens], np.uint8),
            "logprobs": each([rng.normal(-3.4, 0.1, size=len(row)) for row in tokens], np.float32),
            "weight_versions": each([np.where(np.arange(len(row)) % 3 != 1, self.version, -1) for row in tokens],
                                    np.int64),
            "advantage": rng.normal(size=8).astype(np.float32),
        })
'''
FLOW = """
from rolemesh import AtMost, flow


@flow
def synchronous(job):
    job.trainer.train(job.rollout.sample())
    job.rollout.load(job.trainer.weights())


@flow
def bounded(job, most=0):
    job.trainer.train(job.rollout.sample())
    job.rollout.load(job.trainer.weights(), lag=AtMost(most))
"""
JOB = f"""
name: on-policy
flow: flows.py:synchronous
steps: {STEPS}
roles:
  rollout:
    use: function
    options: {{target: "roles.py:Rollout", returns: split, inputs: {{weights: broadcast}}}}
    resources: {{cpu: 0.1}}
  trainer:
    use: ddp
    resources: {{cpu: 0.1}}
    options:
      model: model
      init: random
      lr: 0.01
      loss: "rolemesh_training.losses:grpo"
      max_staleness: 0
"""
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Job:
    for name, text in (("roles.py", ROLES), ("flows.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(MODEL))
    return Job(tmp_path, "on-policy", ("--backend", "local"))


def ended(job: Job, *args: str) -> dict[str, str]:
    done = job.run(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads((job.run_dir / "result.json").read_text())["state_sha256"]
    return found


@pytest.mark.slow
@pytest.mark.soak
def test_a_bounded_lag_of_0_ends_with_the_bits_of_the_synchronous_flow(job: Job) -> None:
    synchronous = ended(job)
    bounded = ended(job, "flow=flows.py:bounded")
    assert synchronous["trainer"] == bounded["trainer"]
    for line in job.metrics():
        found = line["operators"]["trainer.train"]
        assert (found["lag_0"], found["stale_rows"], found["staleness"]) == (1.0, 0.0, 0.0)
    nothing_is_left(job.ids())
