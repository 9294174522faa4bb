"""vLLM on the device: with `batch_invariant` a token has the same bits in every batch, and a killed rank changes
nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.gpu.jobs import MODEL

pytest.importorskip("vllm")
Make = Callable[..., Job]

ROLES = '''
import numpy as np

from rolemesh import Batch, Split, operator


class Prompts:
    """Prompts of different lengths that begin alike."""

    def __init__(self, ctx, rows=8):
        self.ctx, self.rows = ctx, rows

    @operator(returns=Split())
    def next(self):
        rng = self.ctx.rng("prompts", self.ctx.step)
        words = [[7] * 20 + rng.integers(3, 512, 10 + 9 * n).tolist() for n in range(self.rows)]
        prompts = [" ".join(f"w{word}" for word in row) for row in words]
        return Batch({"prompt": prompts, "index": np.arange(self.rows)})


class Judge:
    """Likes even tokens."""

    def __init__(self, ctx):
        self.ctx = ctx

    @operator(samples=Split(), returns=Split())
    def score(self, samples):
        liked = np.array([float(np.mean(np.asarray(ids) % 2 == 0)) for ids in samples["completion_ids"]], np.float32)
        self.ctx.record(ids=[np.asarray(ids).tolist() for ids in samples["completion_ids"]])
        return samples | {"advantage": liked - liked.mean()}
'''

FLOW = """
from rolemesh import flow


@flow
def sampled(job):
    rows = job.judge.score(job.rollout.generate(job.prompts.next()))
    job.trainer.train(rows)
    job.rollout.load_weights(job.trainer.weights())
"""

JOB = """
name: {name}
flow: sampled.py:sampled
steps: 10
seed: 3
roles:
  prompts: {{use: function, options: {{target: "sampling.py:Prompts"}}, resources: {{cpu: 0}}}}
  judge: {{use: function, options: {{target: "sampling.py:Judge"}}, resources: {{cpu: 0}}}}
  rollout:
    use: vllm
    resources: {{cpu: 0.5, gpu: {gpu}}}
    options:
      model: sampler
      samples: 4
      max_tokens: 40
      dtype: {dtype}
      batch_invariant: true
      engine: {{max_model_len: 256{eager}}}
  trainer:
    use: fsdp
    resources: {{cpu: 0.2, gpu: {gpu}}}
    options: {{model: sampler, loss: "rolemesh_training.losses:grpo", lr: 1.0e-4, if_nothing_learned: done}}
failover: [{{use: process, options: {{max_attempts: 20}}}}, {{use: job}}]
"""

BITS = """
import asyncio
import json
import sys
from pathlib import Path

import numpy as np

from rolemesh_vllm.engine import Engine
from rolemesh_vllm.options import VLLMOptions

model, dtype, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = VLLMOptions(model=model, dtype=dtype, batch_invariant=True, engine=settings)
engine = Engine(Path(model), options, seed=1, cpus=1)
rng = np.random.default_rng(0)
prompts = [rng.integers(3, 512, size=n).astype(np.int32) for n in (3, 17, 64, 100, 120, 129, 140, 150)]
asked = [{"max_tokens": 60, "temperature": 1.0, "seed": n, "ignore_eos": True} for n in range(len(prompts))]


async def together(which):
    return await asyncio.gather(*(engine.sample(prompts[n], asked[n]) for n in which))


def bits(answers):
    return [(a["ids"].tolist(), a["logprobs"].tobytes().hex()) for a in answers]


async def compared():
    expected = bits(await together(range(8)))
    again = bits(await together(range(8)))
    alone = []
    for n in range(8):
        engine.llm.reset_prefix_cache()
        alone += bits(await together([n]))
    pair = bits(await together([6, 1]))
    return {"again": again == expected, "alone": alone == expected, "pair": pair == [expected[6], expected[1]]}


engine.label(0)
print(json.dumps(asyncio.run(compared())))
engine.close()
"""


def make_model(folder: Path, device: str) -> None:
    """A random llama with heads of 64, and a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<bos>", "<eos>", *(f"w{n}" for n in range(2, 512))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {"eos_token": "<eos>", "pad_token": "<eos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
    torch.manual_seed(1)
    shape = {key: value for key, value in MODEL.items() if key not in ("architectures", "model_type")}
    model = LlamaForCausalLM(LlamaConfig(**shape | {"bos_token_id": None, "initializer_range": 0.1}))
    (model.bfloat16() if device == "cuda" else model.float()).save_pretrained(folder)


@pytest.fixture
def sampled(make_job: Callable[..., Job], device: str) -> Make:
    def make(name: str) -> Job:
        job = make_job(name)
        gpu = device == "cuda"
        facts = {"name": job.name, "gpu": "0.4" if gpu else "0", "eager": ", enforce_eager: true" if gpu else ""}
        facts["dtype"] = "bfloat16" if gpu else "float32"
        files = {"sampling.py": ROLES, "sampled.py": FLOW, "job.yaml": JOB.format(**facts)}
        for path, text in files.items():
            (job.folder / path).write_text(text)
        make_model(job.folder / "sampler", device)
        return job

    return make


def test_vllm_gives_a_token_the_same_bits_alone_among_others_and_again(tmp_path: Path, device: str) -> None:
    from rolemesh_vllm import VLLMOptions, VLLMWorkload

    make_model(tmp_path / "sampler", device)
    gpu = device == "cuda"
    settings = {"max_model_len": 256} | ({"enforce_eager": True, "gpu_memory_utilization": 0.2} if gpu else {})
    _, env = VLLMWorkload.process(VLLMOptions(model="sampler", batch_invariant=True))
    command = [sys.executable, "-c", BITS, str(tmp_path / "sampler"), "bfloat16" if gpu else "float32"]
    done = subprocess.run([*command, json.dumps(settings)], env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))) == {
        "again": True,
        "alone": True,
        "pair": True,
    }


def test_a_job_whose_vllm_and_trainer_are_killed_ends_as_the_undisturbed_one(sampled: Make) -> None:
    job = sampled("sampled")
    done = job.run("--chaos", "kills=4,seed=2,targets=rank", "--chaos-compare")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "ended exactly as the undisturbed one" in done.stdout


def test_vllm_and_a_trainer_that_take_turns_on_the_device_end_as_side_by_side(sampled: Make, device: str) -> None:
    beside, turns = sampled("beside"), sampled("turns")
    done = beside.run()
    assert done.returncode == 0, done.stdout + done.stderr
    whole = ("roles.rollout.resources.gpu=1", "roles.trainer.resources.gpu=1") if device == "cuda" else ()
    groups = "placement={use: collocation, options: {groups: [{roles: [rollout, trainer], turns: true}]}}"
    done = turns.run(*whole, groups, "--chaos", "kills=2,seed=4,targets=rank")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert turns.result()["state_sha256"] == beside.result()["state_sha256"]
