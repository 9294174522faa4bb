"""The losses against their formulas, on one rank without a group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolemesh.api.batch import Ragged
from rolemesh.api.workload import RankContext
from rolemesh_fsdp import FSDPOptions, FSDPWorkload, LossContext
from rolemesh_fsdp.losses import causal_lm, grpo
from rolemesh_fsdp.packing import completion_logprobs

CPU = torch.device("cpu")


@pytest.fixture
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def context(**options):
    return LossContext(CPU, step=0, version=0, options=options)


def test_causal_lm_sums_the_cross_entropy_of_the_counted_tokens(model, texts):
    batch = texts(0)
    expected, tokens = 0.0, 0
    model.requires_grad_(False)
    for row in batch["input_ids"]:
        ids = torch.tensor(row, dtype=torch.int64)
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        expected -= float(logprobs[torch.arange(1, len(ids) - 1), ids[2:]].sum())
        tokens += len(ids) - 2
    output = causal_lm(model, batch, context())
    assert output.weight == tokens
    assert float(output.total) == pytest.approx(expected, rel=1e-5)


def test_causal_lm_without_a_mask_counts_all_but_the_first_token(model, texts):
    batch = texts(0)
    output = causal_lm(model, batch.select("input_ids"), context())
    assert output.weight == len(batch["input_ids"].values) - batch.rows


def per_token(model, batch, clip):
    """GRPO's clipped objective token by token, over all rows."""
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU, packed=False)
    old = torch.from_numpy(batch["logprobs"].values)
    advantage = torch.from_numpy(np.repeat(batch["advantage"], np.diff(batch["completion_ids"].offsets)))
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage), advantage != 0


def test_grpo_is_the_clipped_objective_over_rows_with_advantage(model, rollouts):
    batch = rollouts(0)
    expected, counted = per_token(model, batch, 0.2)
    output = grpo(model, batch, context())
    assert output.weight == counted.sum()
    torch.testing.assert_close(output.total, expected[counted].sum(), rtol=1e-4, atol=1e-4)
    names = dict(model.named_parameters())
    found = torch.autograd.grad(output.total, list(names.values()))
    wanted = torch.autograd.grad(expected.sum(), list(names.values()))
    for name, one, other in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=name)


def test_grpo_does_not_compute_rows_without_advantage(model, rollouts):
    lengths = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    grpo(model, rollouts(0, (1.0,) * 6), context())
    grpo(model, rollouts(0, (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)), context())
    assert lengths[1] < lengths[0]


def test_grpo_without_any_advantage_still_measures_some_rows(model, rollouts):
    batch = rollouts(0, (0.0,) * 6)
    output = grpo(model, batch, context(probe_rows=2))
    assert (output.total.item(), output.weight) == (0.0, 0.0)
    total, weight = output.metrics["logprob_diff"]
    assert weight == len(batch["completion_ids"][0]) + len(batch["completion_ids"][1])
    assert float(total) > 0


def test_logprob_diff_is_zero_when_the_sampler_agrees(model, rollouts):
    batch = rollouts(0)
    exact = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU, packed=False)
    batch = batch | {"logprobs": Ragged(exact.detach().numpy(), batch["completion_ids"].offsets)}
    metrics = {name: float(total) / weight for name, (total, weight) in grpo(model, batch, context()).metrics.items()}
    assert metrics["logprob_diff"] < 1e-5
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0


def test_the_kl_penalty_pulls_towards_the_reference(model, rollouts):
    batch = rollouts(0, (1.0,) * 6)
    reference = batch | {"ref_logprobs": batch["logprobs"]}
    plain = grpo(model, reference, context())
    with_kl = grpo(model, reference, context(kl_coef=0.5))
    kl, _ = with_kl.metrics["kl"]
    assert float(kl) > 0
    assert with_kl.total.item() == pytest.approx(plain.total.item() + 0.5 * float(kl), rel=1e-5)


def test_logprobs_of_another_length_than_the_completion_are_refused(model, rollouts):
    batch = rollouts(0)
    short = Ragged.from_rows([row[:-1] for row in batch["logprobs"]], np.float32)
    with pytest.raises(ValueError, match="row 0: 'logprobs' has 3 entries for 4 completion tokens"):
        grpo(model, batch | {"logprobs": short}, context())


def trainer(model, tmp_path, loss, **options):
    (tmp_path / "flow.py").write_text(loss)
    given = {"model": str(model), "loss": "flow.py:loss", **options}
    workload = FSDPWorkload()
    workload.setup(RankContext(options=FSDPOptions.model_validate(given, context={"base": str(tmp_path)})))
    return workload


def test_a_loss_that_runs_the_model_twice_is_refused(tiny_model, tmp_path, texts):
    twice = (
        "from rolemesh_fsdp import losses\n"
        "def loss(model, batch, ctx):\n"
        "    losses.causal_lm(model, batch, ctx)\n"
        "    return losses.causal_lm(model, batch, ctx)\n"
    )
    with pytest.raises(RuntimeError, match="ran the model 2 times on a micro-batch; it must run it exactly once"):
        trainer(tiny_model, tmp_path, twice).train(texts(0))


def test_a_loss_that_is_not_finite_stops_the_job_before_the_update(tiny_model, tmp_path, texts):
    infinite = (
        "from dataclasses import replace\n"
        "from rolemesh_fsdp import losses\n"
        "def loss(model, batch, ctx):\n"
        "    output = losses.causal_lm(model, batch, ctx)\n"
        "    return replace(output, total=output.total * float('inf'))\n"
    )
    workload = trainer(tiny_model, tmp_path, infinite)
    before = {name: shard.data.clone() for name, shard in workload.snapshot()["model"].items()}
    with pytest.raises(FloatingPointError, match="gradient norm of update 0 is"):
        workload.train(texts(0))
    assert all(torch.equal(workload.snapshot()["model"][name].data, value) for name, value in before.items())


def test_warm_up_clip_and_learning_rate_are_reported(tiny_model, texts):
    options = FSDPOptions(model=str(tiny_model), lr=0.1, warmup_steps=4, clip_norm=None)
    workload, rates = FSDPWorkload(), []
    context = RankContext(options=options)
    workload.setup(context)
    for step in range(6):
        context._means.clear()
        workload.train(texts(step))
        rates.append(context._means["lr"][0])
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_the_loss_in_the_readme_trains(tiny_model, tmp_path, texts):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    source = readme.split("```python\n")[1].split("```")[0].replace("def next_token", "def loss")
    workload = trainer(tiny_model, tmp_path, source)
    before = workload.snapshot()["model"]["model.norm.weight"].data.clone()
    workload.train(texts(0))
    assert not torch.equal(workload.snapshot()["model"]["model.norm.weight"].data, before)
