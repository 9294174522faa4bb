"""Jobs with pools of prefill and decode ranks. At any ratio and after any kill, the rows are those of one engine."""

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

STEPS = 8

ROLES = '''
import numpy as np

from rolemesh import Batch, Broadcast, Ragged, Split, operator


def prompts(step, rows=6):
    """Token ids that no other step has."""
    rng = np.random.default_rng(step)
    ids = [rng.integers(3, 128, size=40 + row) for row in range(rows)]
    return Batch({"prompt_ids": Ragged.from_rows(ids, dtype=np.int32), "index": np.arange(rows) + step * rows})


class Data:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        return prompts(self.ctx.step)


class Record:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(samples=Broadcast())
    def rows(self, samples):
        self.ctx.record(
            ids=[row.tolist() for row in samples["completion_ids"]],
            logprobs=[row.tolist() for row in samples["logprobs"]],
        )
'''

FLOW = """
from rolemesh import flow


@flow
def rollout(job):
    job.record.rows(job.decode.generate(job.prefill.prefill(job.data.next())))
"""

JOB = """
name: pd
flow: flow.py:rollout
steps: {steps}
seed: 7
roles:
  data: {{use: function, options: {{target: "roles.py:Data"}}, resources: {{cpu: 0}}}}
  record: {{use: function, options: {{target: "roles.py:Record"}}, resources: {{cpu: 0}}}}
  prefill:
    use: vllm-prefill
    world_size: {prefill}
    resources: {{cpu: 0.3}}
    options: {{model: {model}, engine: {engine}}}
  decode:
    use: vllm-decode
    world_size: {decode}
    resources: {{cpu: 0.3}}
    options: {{model: {model}, samples: 2, max_tokens: 64, engine: {engine}}}
placement: {{use: pd, options: {{prefill: prefill, decode: decode}}}}
failover: [{{use: process}}]
observers: []
"""


ENGINE = "{max_model_len: 128, kv_cache_memory_bytes: 8388608}"


@pytest.fixture(scope="module")
def expected(make_rank: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return the completions of each step's prompts by one engine that does both."""
    one = make_rank("VLLMWorkload", samples=2, max_tokens=64)
    one.ready()
    prompts = prompts_of_a_step()
    rows = []
    for step in range(STEPS):
        out, _ = one.call("generate", prompts(step), step=step)
        rows.append(
            {
                "ids": [row.tolist() for row in out["completion_ids"]],
                "logprobs": [row.tolist() for row in out["logprobs"]],
            }
        )
    return rows


def prompts_of_a_step() -> Callable[[int], Any]:
    found: dict[str, Any] = {}
    exec(ROLES, found)
    prompts: Callable[[int], Any] = found["prompts"]
    return prompts


@pytest.fixture
def make_job(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[[int, int], Job]]:
    made: list[Job] = []

    def make(prefill: int, decode: int) -> Job:
        text = JOB.format(steps=STEPS, prefill=prefill, decode=decode, model=tiny_model, engine=ENGINE)
        for name, content in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", text)):
            (tmp_path / name).write_text(content)
        made.append(Job(tmp_path, "pd", ("--backend", "local")))
        return made[-1]

    yield make
    for job in made:
        for process in job.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        ids = job.ids()
        until(lambda ids=ids: not leftovers(ids), "nothing is left of the job")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("prefill", "decode", "victim"),
    [
        (1, 1, "decode/0"),
        pytest.param(1, 2, "decode/1", marks=pytest.mark.soak),
        pytest.param(2, 1, "prefill/1", marks=pytest.mark.soak),
    ],
)
def test_no_request_is_lost_when_a_rank_is_killed_in_the_middle(
    make_job: Callable[[int, int], Job], expected: list[dict[str, Any]], prefill: int, decode: int, victim: str
) -> None:
    job = make_job(prefill, decode)
    process = job.start()
    os.kill(busy(job, victim), signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert [line["records"] for line in job.metrics()] == expected
    launched = [event["data"]["ranks"] for event in job.events() if event["kind"] == "recovery_launched"]
    assert [[f"{rank['role']}/{rank['rank']}" for rank in ranks] for ranks in launched] == [[victim]]
    undisturbed = [line for line in job.metrics() if not line["kv_computed_here"]]
    assert len(undisturbed) >= STEPS // 2
    for line in undisturbed:
        assert line["kv_fetched_tokens"] == line["prefill_tokens"] == sum(range(40, 46))


def busy(job: Job, name: str) -> int:
    """The pid of a rank some steps into the job: of a decode rank at a moment in which it computes. A prefill rank
    computes for milliseconds only, and the rest of the time others fetch from it."""
    status = job.running(2)
    if name.startswith("prefill"):
        return next(rank.pid for rank in status.ranks if str(rank.ref) == name)

    def pid() -> int | None:
        status = job.running(2)
        for rank in status.ranks:
            if str(rank.ref) == name and rank.phase == "computing":
                return rank.pid
        return None

    found: int = until(pid, f"{name} computes")
    return found
