"""A job whose trainer divides each layer: a SIGKILL changes no bit, and its checkpoint goes on with any division."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.harness import Job, nothing_is_left

ROLES = '''
import hashlib

import numpy as np

from rolemesh import Batch, Broadcast, Ragged, Split, operator


class Data:
    """Other rows in each step."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        rng = np.random.default_rng(self.ctx.step)
        return Batch({"input_ids": Ragged.from_rows([rng.integers(0, 64, size=n) for n in (9, 4, 6, 5)], np.int32)})


class Record:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(weights=Broadcast())
    def take(self, weights):
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(np.ascontiguousarray(weights[name]).tobytes())
        self.ctx.record(version=int(weights["__version__"][0]), sha256=digest.hexdigest())
'''

LOSS = '''
import dataclasses
import os
import signal
from pathlib import Path

import torch.distributed as dist

from rolemesh_training.losses import causal_lm


def loss(model, batch, ctx):
    """The usual loss. Rank 1 kills itself in step 3, once."""
    marker = Path(ctx.options["killed"])
    if ctx.step == 3 and dist.get_rank() == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return causal_lm(model, batch, dataclasses.replace(ctx, options={}))
'''

FLOW = """
from rolemesh import flow


@flow
def train(job):
    job.trainer.train(job.data.next())
    job.record.take(job.trainer.weights())
"""

JOB = """
name: divided
flow: flow.py:train
steps: 5
seed: 7
roles:
  data: {{use: function, options: {{target: "roles.py:Data"}}, resources: {{cpu: 0}}}}
  record: {{use: function, options: {{target: "roles.py:Record"}}, resources: {{cpu: 0}}}}
  trainer:
    use: fsdp
    world_size: 2
    resources: {{cpu: 0.5}}
    options:
      model: {model}
      loss: loss.py:loss
      loss_options: {{killed: {killed}}}
      lr: 1.0e-2
      tensor_parallel: 2
failover: [{{use: process}}]
observers: []
"""


@pytest.fixture
def job(tmp_path: Path, even_model: Callable[..., Path]) -> Iterator[Job]:
    text = JOB.format(model=even_model(), killed=tmp_path / "killed")
    for name, content in (("roles.py", ROLES), ("loss.py", LOSS), ("flow.py", FLOW), ("job.yaml", text)):
        (tmp_path / name).write_text(content)
    made = Job(tmp_path, "divided", ("--backend", "local"))
    yield made
    nothing_is_left(made.ids())


def records(job: Job) -> list[Any]:
    return [line["records"] for line in job.metrics()]


def exported(job: Job) -> dict[str, Any]:
    """The weights of the newest checkpoint, as transformers loads them."""
    from transformers import AutoModelForCausalLM

    done = job.cli("checkpoint", "export", job.name, "-o", f"out-{job.name}")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = next(job.folder.glob(f"out-{job.name}/**/config.json")).parent
    found: dict[str, Any] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return found


def test_a_killed_rank_changes_no_bit_and_its_checkpoint_goes_on_undivided(job: Job) -> None:
    killed = job.run()
    assert killed.returncode == 0, killed.stdout
    # The other rank, whose collective breaks off, may be the first to say so.
    assert any(event["kind"] == "failure" for event in job.events())
    assert (job.folder / "killed").exists()
    calm = Job(job.folder, "calm", job.backend)
    done = calm.run("name=calm", "steps=6")
    assert done.returncode == 0, done.stdout
    assert [found["version"] for found in records(calm)] == [1, 2, 3, 4, 5, 6]
    assert records(job) == records(calm)[:5]

    whole = Job(job.folder, "whole", job.backend)
    done = whole.run("name=whole", "steps=6", "--resume", "divided", "roles.trainer.options.tensor_parallel=1")
    assert done.returncode == 0, done.stdout
    before, after, wanted = exported(job), exported(whole), exported(calm)
    assert before.keys() == after.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        assert not np.array_equal(before[name], value), "the sixth step changes every tensor"
