"""An engine of two processes. It has the outputs of one process. A kill leaves no process and no shared memory."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.harness import Job, leftovers
from tests.waiting import until

from rolemesh_vllm.buckets import BUCKET_BYTES

TWO = {"max_model_len": 128, "kv_cache_memory_bytes": 8 << 20, "tensor_parallel_size": 2}

ROLES = '''
import numpy as np

from rolemesh import Batch, Broadcast, Ragged, Shard, Shards, Sharded, Split, operator

SHAPES = {shapes}


class Data:
    """Token ids that no other step has."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def next(self):
        rng = np.random.default_rng(self.ctx.step)
        ids = [rng.integers(3, 128, size=40 + row) for row in range(4)]
        return Batch({{"prompt_ids": Ragged.from_rows(ids, dtype=np.int32), "index": np.arange(4)}})


class Weights:
    """Other weights in each step."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Sharded())
    def next(self):
        rng = np.random.default_rng(self.ctx.step)
        found = {{name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in SHAPES.items()}}
        found["__version__"] = np.array([self.ctx.step + 1])
        return Shards({{name: Shard(a, a.shape, (0,) * a.ndim) for name, a in found.items()}})


class Record:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(samples=Broadcast())
    def rows(self, samples):
        self.ctx.record(
            ids=[row.tolist() for row in samples["completion_ids"]],
            logprobs=[row.tolist() for row in samples["logprobs"]],
            versions=samples["weight_version"].tolist(),
        )
'''

FLOW = """
from rolemesh import flow


@flow
def rollout(job):
    job.record.rows(job.rollout.generate(job.data.next()))
    job.rollout.load_weights(job.weights.next())
"""

JOB = """
name: tensor
flow: flow.py:rollout
steps: 12
seed: 7
roles:
  data: {{use: function, options: {{target: "roles.py:Data"}}, resources: {{cpu: 0}}}}
  weights: {{use: function, options: {{target: "roles.py:Weights"}}, resources: {{cpu: 0}}}}
  record: {{use: function, options: {{target: "roles.py:Record"}}, resources: {{cpu: 0}}}}
  rollout:
    use: vllm
    resources: {{cpu: 1}}
    options: {{model: {model}, samples: 2, max_tokens: 64, engine: {engine}}}
failover: [{{use: process}}]
observers: []
"""


def shared_memory() -> set[str]:
    """Return the files in shared memory that engines have left behind: no living process maps them. Other tests on
    this machine have engines, too."""
    found, mapped = {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "vllm_"))}, set[str]()
    for path in Path("/proc").glob("[0-9]*/maps") if found else ():
        with suppress(OSError):
            mapped.update(re.findall("/dev/shm/([^ \n]+)", path.read_text()))
    return found - mapped


def children(pid: int) -> set[int]:
    """The living children of a process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.add(int(path.parent.name))
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def nothing_left(pids: set[int], memory: set[str]) -> None:
    """Wait until none of `pids` lives and there is no more shared memory than before."""
    until(lambda: not any(map(lives, pids)), f"the engine's processes {pids} are gone")
    until(lambda: shared_memory() <= memory, f"of shared memory only {memory} is left")


def ids(rows: Any) -> list[list[int]]:
    return [row.tolist() for row in rows["completion_ids"]]


@pytest.mark.soak
@pytest.mark.slow
def test_new_weights_reach_both_parts_of_an_engine_whose_death_by_sigkill_leaves_nothing(
    make_rank: Callable[..., Any], prompts: Any, new_weights: Any, greedy: Any
) -> None:
    import torch

    before = shared_memory()
    two = make_rank("VLLMWorkload", engine=TWO, max_tokens=8)
    two.ready()
    model, weights = new_weights(21, 2)
    two.call("load_weights", weights)
    out, _ = two.call("evaluate", prompts(4))
    assert ids(out) == [greedy(model, row, 8) for row in out["prompt_ids"]]
    assert out["weight_version"].tolist() == [2] * 4
    for prompt, row, logprobs in zip(out["prompt_ids"], out["completion_ids"], out["logprobs"], strict=True):
        tokens = torch.tensor(np.concatenate([prompt, row]), dtype=torch.int64)
        with torch.no_grad():
            table = model(tokens[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        np.testing.assert_allclose(logprobs, table.gather(-1, tokens[len(prompt) :, None])[:, 0].numpy(), atol=1e-4)
    workers = children(two.process.pid)
    assert len(workers) == 2
    # As an agent does it: the rank, and everything in its session.
    os.killpg(two.process.pid, signal.SIGKILL)
    two.process.wait()
    nothing_left(workers, before)


@pytest.mark.soak
def test_outputs_are_those_of_an_engine_of_one_process(make_rank: Callable[..., Any], prompts: Any) -> None:
    one = make_rank("VLLMWorkload", samples=3, max_tokens=16)
    two = make_rank("VLLMWorkload", samples=3, max_tokens=16, engine=TWO)
    one.ready()
    two.ready()
    for step, operator in enumerate(["evaluate", "generate"]):
        expected, _ = one.call(operator, prompts(6), step=step)
        found, _ = two.call(operator, prompts(6), step=step)
        assert ids(found) == ids(expected)
        np.testing.assert_allclose(found["logprobs"].values, expected["logprobs"].values, atol=1e-4)
        assert two.call(operator, prompts(6), step=step)[0] == found


@pytest.mark.soak
def test_weights_that_take_several_buckets_and_adapters_arrive(
    make_rank: Callable[..., Any], tmp_path: Path, tiny_model: Path, prompts: Any, greedy: Any, adapters: Any
) -> None:
    import shutil

    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    folder = tmp_path / "large"
    shutil.copytree(tiny_model, folder)
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers, config.intermediate_size = 12, 16384  # a layer has 12.6 MB
    LlamaForCausalLM(config).save_pretrained(folder)
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).float().eval()
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    assert sum(array.nbytes for array in weights.values()) > 2 * BUCKET_BYTES
    two = make_rank("VLLMWorkload", model=str(folder), max_tokens=8, engine=TWO)
    two.ready()
    two.call("load_weights", weights)
    out, _ = two.call("evaluate", prompts(3))
    assert ids(out) == [greedy(model, row, 8) for row in out["prompt_ids"]]
    given = {name: a for name, a in adapters(4, 1).items() if "down_proj" not in name}
    two.call("load_weights", given)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    name = "model.layers.0.self_attn.q_proj"
    up, down = (torch.from_numpy(given[f"{name}.lora_{half}.weight"]) for half in "BA")
    model.get_submodule(name).weight.data += 2.0 * up @ down
    out, _ = two.call("evaluate", prompts(3))
    assert ids(out) == [greedy(model, row, 8) for row in out["prompt_ids"]]


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["worker", "rank"])
def test_a_kill_in_the_middle_of_generation_is_named_and_leaves_nothing(
    make_rank: Callable[..., Any], prompts: Any, victim: str
) -> None:
    before = shared_memory()
    two = make_rank("VLLMWorkload", engine=TWO, samples=64, max_tokens=80)
    two.ready()
    workers = children(two.process.pid)
    two.begin("generate", prompts(20))
    until(lambda: all(map(busy, workers)), "both workers compute")
    if victim == "rank":
        os.kill(two.process.pid, signal.SIGKILL)
        two.process.wait()
    else:
        killed = max(workers)
        os.kill(killed, signal.SIGKILL)
        named = rf"Worker proc VllmWorker-\d \(pid {killed}\), .* died unexpectedly: killed by SIGKILL"
        with pytest.raises(RuntimeError, match=named):
            two.end()
        two.hang_up()
        assert two.process.wait() == 0
    nothing_left(workers, before)


def busy(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


@pytest.mark.soak
@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0])
def test_a_rank_that_is_killed_while_its_workers_start_leaves_nothing(
    make_rank: Callable[..., Any], delay: float
) -> None:
    import time

    before = shared_memory()
    two = make_rank("VLLMWorkload", engine=TWO)
    workers: set[int] = until(lambda: children(two.process.pid), "a worker starts")
    time.sleep(delay)  # it is the moment that is to be varied
    workers |= children(two.process.pid)
    os.killpg(two.process.pid, signal.SIGKILL)
    two.process.wait()
    nothing_left(workers, before)


@pytest.fixture
def job(tmp_path: Path, tiny_model: Path) -> Iterator[Job]:
    from rolemesh_vllm.checkpoint import checkpoint_shapes

    text = JOB.format(model=tiny_model, engine=TWO)
    roles = ROLES.format(shapes=checkpoint_shapes(tiny_model))
    for name, content in (("roles.py", roles), ("flow.py", FLOW), ("job.yaml", text)):
        (tmp_path / name).write_text(content)
    made = Job(tmp_path, "tensor", ("--backend", "local"))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
    until(lambda: not leftovers(made.ids()), "nothing is left of the job")


@pytest.mark.soak
def test_jobs_whose_workers_and_ranks_are_killed_end_as_the_undisturbed_one(job: Job) -> None:
    memory = shared_memory()
    calm = Job(job.folder, "calm", job.backend)
    done = calm.run("name=calm")
    assert done.returncode == 0, done.stdout
    expected = [line["records"] for line in calm.metrics()]
    assert [line["versions"] for line in expected] == [[step] * 8 for step in range(12)]
    process = job.start()
    pid, workers = running(job, 1)
    os.kill(max(workers), signal.SIGKILL)
    again = until(lambda: successor(job, pid), "the rank whose worker was killed is back")
    seen = workers | (more := children(again))
    os.kill(again, signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert [line["records"] for line in job.metrics()] == expected
    failures = [event["data"]["failure"] for event in job.events() if event["kind"] == "failure"]
    assert [failure["cause"] for failure in failures] == ["exception", "signal"]
    named = rf"Worker proc VllmWorker-\d \(pid {max(workers)}\), .* died unexpectedly: killed by SIGKILL"
    assert re.search(named, failures[0]["message"])
    assert len(more) == 2
    nothing_left(seen | {pid, again}, memory)


def running(job: Job, step: int) -> tuple[int, set[int]]:
    """The rollout rank and its workers, once the job has done `step`."""
    status = job.running(step)
    pid = next(rank.pid for rank in status.ranks if rank.role == "rollout")
    return pid, children(pid)


def successor(job: Job, pid: int) -> int | None:
    status = job.status()
    found = next((rank.pid for rank in status.ranks if rank.role == "rollout"), 0) if status else 0
    return found if found not in (0, pid) and len(children(found)) == 2 else None
