"""A job whose turns two ranks sample. Killed in a request, a rank leaves it to the other, and nothing changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Job, leftovers
from tests.waiting import until

pytestmark = pytest.mark.slow

STEPS = 6

ROLES = '''
import asyncio

import numpy as np
from safetensors.numpy import load_file

from rolemesh import Batch, Broadcast, Sharded, operator
from rolemesh_agents.conversations.parts import in_parts
from rolemesh_agents.conversations.sampling import sample_turn


class Agent:
    def __init__(self, ctx, turns=6):
        self.ctx, self.turns = ctx, turns

    @operator(returns=Broadcast())
    async def converse(self):
        turns = await asyncio.gather(*(self.turn(n) for n in range(self.turns)))
        self.ctx.record(
            ids=[turn.ids.tolist() for turn in turns],
            logprobs=[turn.logprobs.tolist() for turn in turns],
            versions=[sorted(set(turn.versions.tolist())) for turn in turns],
        )
        return Batch({"length": np.array([len(turn.ids) for turn in turns])})

    async def turn(self, number):
        prompt = np.random.default_rng(number).integers(3, 128, size=20 + number).astype(np.int32)
        seed = self.ctx.seed_for("turn", self.ctx.step, number)
        params = {"max_tokens": 150, "ignore_eos": True, "seed": seed}
        return await in_parts(lambda p, given: sample_turn(self.ctx, "rollout", p, given, 100), prompt, params, 40)


class Trainer:
    """New weights in each step, after all its turns."""

    def __init__(self, ctx, model):
        self.ctx, self.model = ctx, load_file(model + "/model.safetensors")

    @operator(turns=Broadcast())
    def train(self, turns):
        assert len(turns["length"])

    @operator(returns=Sharded())
    def weights(self):
        scale = np.float32(1 + 0.01 * self.ctx.step)
        version = np.array([self.ctx.step + 1], np.int64)
        return {name: array * scale for name, array in self.model.items()} | {"__version__": version}
'''

FLOW = """
from rolemesh import flow


@flow
def talk(job):
    job.trainer.train(job.agent.converse(calls=[job.rollout]))
    job.rollout.load_weights(job.trainer.weights())
"""

JOB = """
name: talk
flow: flow.py:talk
steps: {steps}
seed: 7
roles:
  agent: {{use: function, options: {{target: "roles.py:Agent"}}, resources: {{cpu: 0}}}}
  trainer: {{use: function, options: {{target: "roles.py:Trainer", kwargs: {{model: {model}}}}}, resources: {{cpu: 0}}}}
  rollout:
    use: vllm
    world_size: 2
    resources: {{cpu: 0.5}}
    options: {{model: {model}, max_tokens: 1, engine: {{max_model_len: 256, kv_cache_memory_bytes: 8388608}}}}
failover: [{{use: process}}]
observers: []
"""


@pytest.fixture
def make_job(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[[str], Job]]:
    made: list[Job] = []

    def make(folder: str) -> Job:
        (tmp_path / folder).mkdir()
        text = JOB.format(steps=STEPS, model=tiny_model)
        for name, content in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", text)):
            (tmp_path / folder / name).write_text(content)
        made.append(Job(tmp_path / folder, "talk", ("--backend", "local")))
        return made[-1]

    yield make
    for job in made:
        for process in job.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        ids = job.ids()
        until(lambda ids=ids: not leftovers(ids), "nothing is left of the job")  # type: ignore[misc]


def turns(job: Job) -> list[dict[str, Any]]:
    return [line["records"] for line in job.metrics()]


@pytest.mark.soak
def test_a_turn_whose_rank_dies_goes_on_with_the_same_tokens(make_job: Callable[[str], Job]) -> None:
    undisturbed = make_job("undisturbed")
    out, _ = undisturbed.start().communicate()
    assert undisturbed.started[-1].returncode == 0, out
    expected = turns(undisturbed)
    assert [line["versions"] for line in expected] == [[[step]] * 6 for step in range(STEPS)]
    job = make_job("killed")
    process = job.start()
    status = job.running(2)
    os.kill(next(rank.pid for rank in status.ranks if str(rank.ref) == "rollout/1"), signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert turns(job) == expected
    launched = [event["data"]["ranks"] for event in job.events() if event["kind"] == "recovery_launched"]
    assert [[f"{rank['role']}/{rank['rank']}" for rank in ranks] for ranks in launched] == [["rollout/1"]]
