"""The job of these tests: rows, a trainer on the device, a reference and a sampler that hold weights there."""

from __future__ import annotations

import json

from tests.e2e.harness import Job

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""A Llama with heads of 64, for which torch has its fast attention kernels."""
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
"""Dimensions of the model when the tests run on a CPU."""

ROLES = '''
import hashlib
import os
import pickle
import time

import numpy as np
import torch

from rolemesh import Batch, Broadcast, Ragged, Sharded, Split, operator

DEVICE = "%(device)s"


class Rows:
    """Sentences (`input_ids`), and prompts with answers that somebody liked more or less."""

    def __init__(self, ctx, rows=8, longest=%(longest)s, far=-1):
        self.ctx, self.rows, self.longest, self.far = ctx, rows, longest, far

    @operator(returns=Split())
    def next(self):
        rng = self.ctx.rng("rows", self.ctx.step)
        rows = [rng.integers(2, 512, rng.integers(20, self.longest)) for _ in range(self.rows)]
        if self.ctx.step == self.far:
            rows[0][5] = 100_000
        prompts = [rng.integers(2, 512, 40) for _ in range(self.rows // 4) for _ in range(1)]
        return Batch({
            "input_ids": Ragged.from_rows(rows, np.int32),
            "prompt_ids": Ragged.from_rows([prompts[i // 4] for i in range(self.rows)], np.int32),
            "completion_ids": Ragged.from_rows([row[:200] for row in rows], np.int32),
            "logprobs": Ragged.from_rows([np.full(len(row[:200]), -6.2, np.float32) for row in rows], np.float32),
            "advantage": rng.standard_normal(self.rows).astype(np.float32),
        })


class Sampler:
    """Has the weights on the device, in tensors of its own; each step it says what it holds."""

    def __init__(self, ctx):
        self.ctx, self.own = ctx, {}

    @operator(weights=Sharded(dim=None))
    def load(self, weights):
        for name, shard in weights.items():
            if name.startswith("__"):
                continue
            for piece in shard if isinstance(shard, list) else [shard]:
                if name not in self.own:
                    self.own[name] = torch.zeros(piece.shape, dtype=piece.data.dtype, device=DEVICE)
                at = tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.data.shape))
                self.own[name][at].copy_(piece.data)
        assert all(tensor.device.type == DEVICE for tensor in self.own.values())
        assert all(bool(tensor.float().abs().sum() > 0) for tensor in self.own.values())

    def snapshot(self):
        return dict(self.own)

    def restore(self, state):
        self.own = {name: torch.as_tensor(value).to(DEVICE) for name, value in state.items()}


class Giver:
    """Returns a tensor that lies on the device."""

    @operator(returns=Broadcast())
    def give(self):
        return {"x": torch.arange(2_000_000, device=DEVICE, dtype=torch.float32), "y": torch.ones(3, device=DEVICE)}


class Taker:
    @operator(value=Broadcast())
    def take(self, value):
        assert value["x"].device.type == "cpu"
        assert float(value["x"][-1]) == 1_999_999.0
        assert value["y"].tolist() == [1, 1, 1]


class Faulty:
    """Does something to the device in step `at`, in its first life only if `once`."""

    def __init__(self, ctx, what="", at=3, once=True):
        self.ctx, self.what, self.at, self.once, self.seen = ctx, what, at, once, 0.0
        self.x = torch.ones(1000, device=DEVICE)

    @operator(rows=Split())
    def take(self, rows):
        self.seen += float(rows.rows)
        self.x += 1
        mark = self.ctx.base / f"{self.what}.mark"
        if self.ctx.step == self.at and not (self.once and mark.exists()):
            mark.touch()
            getattr(self, self.what)()
        time.sleep(0.01)

    def snapshot(self):
        return {"seen": self.seen, "x": self.x}

    def restore(self, state):
        self.seen = state["seen"]
        self.x = torch.as_tensor(state["x"]).to(DEVICE)

    def memory(self):
        if DEVICE == "cpu":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB.")
        torch.empty(2 << 40, dtype=torch.uint8, device=DEVICE)

    def illegal(self):
        from beyond import far
        far[(1,)](self.x, 1 << 45)
        torch.cuda.synchronize()

    def hang(self):
        if DEVICE == "cpu":
            time.sleep(600)
        torch.cuda._sleep(1 << 40)
        torch.cuda.synchronize()
'''

BEYOND = """
import triton
import triton.language as tl


@triton.jit
def far(x, offset):
    tl.store(x + offset, 1.0)
"""

LOSSES = """
from rolemesh_training import losses


def sentences(model, batch, ctx):
    assert ctx.device.type == "%(device)s", ctx.device
    return losses.causal_lm(model, batch, ctx)


def answers(model, batch, ctx):
    assert ctx.device.type == "%(device)s", ctx.device
    return losses.grpo(model, batch, ctx)
"""

FLOW = """
from rolemesh import flow


@flow
def train(job):
    job.trainer.train(job.rows.next())


@flow
def handed(job):
    job.trainer.train(job.rows.next())
    job.sampler.load(job.trainer.weights(), lag=1)


@flow
def referred(job):
    job.trainer.train(job.reference.logprobs(job.rows.next()))


@flow
def faulty(job):
    job.faulty.take(job.rows.next())


@flow
def given(job):
    job.taker.take(job.giver.give())
"""

JOB = """
name: %(name)s
flow: flow.py:train
steps: 30
seed: 3
roles:
  rows: {use: function, options: {target: "roles.py:Rows"}, resources: {cpu: 0}}
  trainer:
    use: fsdp
    resources: {cpu: 0.2, gpu: %(gpu)s}
    options: {model: model, init: random, loss: "losses.py:sentences", lr: 1.0e-3, if_nothing_learned: done}
failover: [{use: process, options: {max_attempts: 20}}, {use: job}]
engine: {options: {stop_grace_s: 5}}
"""


def write(job: Job, device: str) -> Job:
    """Put the job's files into its folder."""
    facts = {"device": device, "name": job.name, "gpu": "0.5" if device == "cuda" else "0"}
    facts["longest"] = "300" if device == "cuda" else "40"
    (job.folder / "model").mkdir()
    model = MODEL if device == "cuda" else MODEL | SMALL
    files = {
        "roles.py": ROLES % facts,
        "beyond.py": BEYOND,
        "losses.py": LOSSES % facts,
        "flow.py": FLOW,
        "job.yaml": JOB % facts,
        "model/config.json": json.dumps(model),
    }
    for name, text in files.items():
        (job.folder / name).write_text(text)
    return job
