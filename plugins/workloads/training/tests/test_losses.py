"""The losses against their formulas, on one rank without a group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training import LossContext
from rolemesh_training.advantages import gae
from rolemesh_training.losses import causal_lm, classification, distill, dpo, grpo, ppo, value
from rolemesh_training.packing import completion_logprobs, completion_values

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


def taught(model, batch, top, change=0.0):
    """The batch with what `model` says of each token, its `top` likeliest ones."""
    found = []
    for row in batch["input_ids"]:
        with torch.no_grad():
            found.append(model(input_ids=torch.tensor(row, dtype=torch.int64)[None]).logits[0].topk(top))
    offsets = batch["input_ids"].offsets
    ids = np.concatenate([f.indices.numpy() for f in found])
    logits = np.concatenate([f.values.numpy() for f in found])
    return batch | {"teacher_ids": Ragged(ids, offsets), "teacher_logits": Ragged(logits + change, offsets)}


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.0), (2.0, 0.3)])
def test_distill_is_the_divergence_from_the_teacher_over_its_likeliest_tokens(model, texts, temperature, alpha):
    batch = taught(model, texts(0), 7)
    batch = batch | {
        "teacher_logits": Ragged(batch["teacher_logits"].values[:, ::-1].copy(), batch["teacher_logits"].offsets)
    }
    expected = 0.0
    model.requires_grad_(False)
    for row, ids, teacher in zip(*(batch[n] for n in ("input_ids", "teacher_ids", "teacher_logits")), strict=True):
        logits = model(input_ids=torch.tensor(row, dtype=torch.int64)[None]).logits[0]
        for at in range(1, len(row) - 1):  # the first two tokens do not count
            own = (logits[at] / temperature).log_softmax(-1)[torch.from_numpy(ids[at])]
            said = torch.from_numpy(teacher[at] / temperature).log_softmax(-1)
            expected += (1 - alpha) * temperature**2 * float((said.exp() * (said - own)).sum())
            expected -= alpha * float(logits[at].log_softmax(-1)[int(row[at + 1])])
    output = distill(model, batch, context(temperature=temperature, alpha=alpha))
    assert float(output.total) == pytest.approx(expected, rel=1e-5)
    assert output.weight == sum(len(row) - 2 for row in batch["input_ids"])
    assert float(output.metrics["agreement"][0]) == output.weight


def test_distill_has_nothing_to_learn_from_a_teacher_that_says_the_same(model, texts):
    output = distill(model, taught(model, texts(0), 61), context())
    output.total.backward()
    assert output.total.item() == pytest.approx(0.0, abs=1e-4)
    assert max(float(p.grad.abs().max()) for p in model.parameters()) < 1e-4


def test_distill_names_a_teacher_that_speaks_of_other_rows(model, texts):
    batch = taught(model, texts(0), 3)
    short = batch | {"teacher_ids": Ragged(batch["teacher_ids"].values[:-1], batch["teacher_ids"].offsets.clip(max=28))}
    with pytest.raises(RolemeshError, match=r"shapes \(28, 3\) and \(29, 3\) for 29 tokens"):
        distill(model, short, context())


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
    assert output.weight == counted.numel()
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
    assert (output.total.item(), output.weight, output.besides) == (0.0, 0.0, len(batch["completion_ids"].values))
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


@pytest.mark.parametrize("advantages", [(0.0,) * 6, (1.0, -1.0, 0.0, 0.0, 0.5, 0.0)])
@pytest.mark.parametrize("options", [{}, {"aggregation": "sequence_mean"}, {"ratio": "sequence"}])
def test_rows_whose_advantage_is_0_have_the_gradient_of_the_kl_penalty(model, rollouts, advantages, options):
    batch = rollouts(0, advantages)
    batch = batch | {"ref_logprobs": batch["logprobs"]}
    per_token = Ragged(
        np.repeat(batch["advantage"], np.diff(batch["completion_ids"].offsets)), batch["completion_ids"].offsets
    )
    output = grpo(model, batch, context(kl_coef=0.5, **options))
    every_row = ppo(model, batch | {"advantages": per_token}, context(kl_coef=0.5, **options))
    assert output.weight == every_row.weight
    weights = list(model.parameters())
    found = torch.autograd.grad(output.total, weights, allow_unused=True)
    wanted = torch.autograd.grad(every_row.total, weights, allow_unused=True)
    assert sum(float(each.norm()) for each in found if each is not None) > 0
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-6)


def test_logprobs_of_another_length_than_the_completion_are_refused(model, rollouts):
    batch = rollouts(0)
    short = Ragged.from_rows([row[:-1] for row in batch["logprobs"]], np.float32)
    with pytest.raises(RolemeshError, match=r"row 0 \(of group 0\): 'logprobs' has 3 entries for 4 completion tokens"):
        grpo(model, batch | {"logprobs": short}, context())


def test_ppo_with_one_advantage_for_all_tokens_of_a_row_is_grpo(model, rollouts):
    batch = rollouts(0, (1.0, -1.0, 0.5, 0.5, -0.5, 2.0))
    lengths = np.diff(batch["completion_ids"].offsets)
    per_token = Ragged(np.repeat(batch["advantage"], lengths), batch["completion_ids"].offsets)
    one, other = grpo(model, batch, context()), ppo(model, batch | {"advantages": per_token}, context())
    assert one.weight == other.weight
    assert torch.equal(one.total, other.total)


def test_a_ratio_of_the_sequence_is_the_same_for_each_of_its_tokens(model, rollouts):
    batch = rollouts(0, (1.0,) * 6)
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU).detach()
    diff = (new - torch.from_numpy(batch["logprobs"].values)).split(np.diff(batch["completion_ids"].offsets).tolist())
    expected = sum(float(d.mean().exp()) * len(d) for d in diff)
    output = grpo(model, batch, context(ratio="sequence", aggregation="token_mean", clip=100.0))
    assert float(output.metrics["ratio"][0]) == pytest.approx(expected, rel=1e-4)
    assert float(output.total) == pytest.approx(-expected, rel=1e-4)
    assert output.total.requires_grad


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_gspos_gradient_is_the_papers_mean_over_sequences(model, rollouts):
    batch = rollouts(0, (1.0, -1.0, 0.5, 0.0, -0.5, 2.0))
    lengths = np.diff(batch["completion_ids"].offsets).tolist()
    old = torch.from_numpy(batch["logprobs"].values).split(lengths)
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU, packed=False).split(lengths)
    terms = []
    for after, before, advantage in zip(new, old, batch["advantage"], strict=True):
        ratio = (after - before).mean().exp()  # equation 7 of arXiv:2507.18071
        terms.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    expected = gradient(model, -torch.stack(terms).mean())
    output = grpo(model, batch, context(ratio="sequence"))
    assert output.weight == batch.rows
    torch.testing.assert_close(gradient(model, output.total / output.weight), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize(("aggregation", "length"), [("token_mean", None), ("sequence_mean", None), ("constant", 7)])
def test_tokens_are_aggregated_as_the_option_says(model, rollouts, aggregation, length, pack):
    batch = rollouts(0, (1.0, -1.0, 0.5, 0.0, -0.5, 2.0))
    lengths = np.diff(batch["completion_ids"].offsets)
    losses, _ = per_token(model, batch, 0.2)
    rows = losses.split(lengths.tolist())
    expected = {
        "token_mean": losses.mean(),
        "sequence_mean": torch.stack([row.mean() for row in rows]).mean(),
        "constant": losses.sum() / (len(rows) * 7),
    }[aggregation]
    chosen = {"aggregation": aggregation, "aggregation_length": length, "pack": pack}
    output = grpo(model, batch, context(**chosen))
    torch.testing.assert_close(output.total / output.weight, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "constant"])
def test_rows_without_advantage_count_in_a_mean_over_rows(model, rollouts, aggregation):
    length = {"aggregation_length": 5} if aggregation == "constant" else {}
    output = grpo(model, rollouts(0, (0.0,) * 6), context(aggregation=aggregation, **length))
    assert (output.total.item(), output.weight, output.besides) == (0.0, 0.0, 6.0)


def test_an_empty_completion_counts_as_a_row_and_has_no_loss(model, rollouts):
    batch = rollouts(0, (1.0,) * 6)
    one = lambda name, rows: Ragged.from_rows(rows, batch[name].values.dtype)  # noqa: E731
    first = {name: one(name, [batch[name][0], batch[name][1][:0]]) for name in ("completion_ids", "logprobs")}
    prompts = {"prompt_ids": one("prompt_ids", [batch["prompt_ids"][0], batch["prompt_ids"][1]])}
    output = grpo(model, Batch({**prompts, **first, "advantage": np.float32([1, 1])}), context(ratio="sequence"))
    alone = {name: one(name, [batch[name][0]]) for name in ("prompt_ids", "completion_ids", "logprobs")}
    wanted = grpo(model, Batch({**alone, "advantage": np.float32([1])}), context(ratio="sequence"))
    torch.testing.assert_close(output.total, wanted.total)
    assert (output.weight, wanted.weight) == (2.0, 1.0)


@pytest.mark.parametrize("options", [{"aggregation": "constant"}, {"aggregation_length": 5}])
def test_a_constant_and_its_length_go_together(model, rollouts, options):
    with pytest.raises(ValueError, match="aggregation: constant and aggregation_length go together"):
        grpo(model, rollouts(0), context(**options))


def test_the_ratio_may_rise_further_than_it_may_fall(model, rollouts):
    batch = rollouts(0, (1.0,) * 6)
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU).detach()
    ratio = (new - torch.from_numpy(batch["logprobs"].values)).exp()
    output = grpo(model, batch, context(clip=0.2, clip_high=3.0))
    assert float(output.total.detach()) == pytest.approx(-float(ratio.clamp(max=4.0).sum()), rel=1e-4)
    outside = ((ratio > 4.0) | (ratio < 0.8)).sum()
    assert float(output.metrics["clip_fraction"][0]) == float(outside)


def test_dpo_prefers_what_was_chosen(model, rollouts):
    batch, rows = rollouts(0), [0, 2, 4]
    take = lambda step: Ragged.from_rows([batch["completion_ids"][i + step] for i in rows], np.int32)  # noqa: E731
    prompts = Ragged.from_rows([batch["prompt_ids"][i] for i in rows], np.int32)
    pairs = {"prompt_ids": prompts, "chosen_ids": take(0), "rejected_ids": take(1)}
    sums = []
    for name in ("chosen_ids", "rejected_ids"):
        flat = completion_logprobs(model, prompts, pairs[name], CPU, packed=False).detach()
        sums.append(np.array([p.sum() for p in flat.split(np.diff(pairs[name].offsets).tolist())], dtype=np.float32))
    at_reference = dpo(model, Batch({**pairs, "ref_chosen": sums[0], "ref_rejected": sums[1]}), context())
    assert float(at_reference.total) == pytest.approx(3 * np.log(2), rel=1e-4)
    ahead = dpo(model, Batch({**pairs, "ref_chosen": sums[0] - 5, "ref_rejected": sums[1]}), context(beta=0.5))
    assert float(ahead.total) == pytest.approx(3 * np.log1p(np.exp(-2.5)), rel=1e-4)
    assert float(ahead.metrics["accuracy"][0]) == 3.0


def test_a_critic_says_the_same_in_a_packed_row_and_learns_returns(tiny_model, rollouts):
    torch.manual_seed(1)
    critic = AutoModelForTokenClassification.from_pretrained(tiny_model, num_labels=1).eval()
    batch = rollouts(0)
    found = completion_values(critic, batch["prompt_ids"], batch["completion_ids"], CPU).detach()
    wanted = []
    for prompt, completion in zip(batch["prompt_ids"], batch["completion_ids"], strict=True):
        row = torch.tensor(np.concatenate([prompt, completion]), dtype=torch.int64)[None]
        wanted.append(critic(input_ids=row).logits[0, len(prompt) - 1 : -1, 0].detach())
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-4, atol=1e-4)
    offsets = batch["completion_ids"].offsets
    batch = batch | {"values": Ragged(found.numpy(), offsets), "returns": Ragged(found.numpy() + 1, offsets)}
    assert float(value(critic, batch, context()).total) == pytest.approx(0.5 * len(found), rel=1e-4)


def test_a_classifier_looks_at_the_last_token_of_each_row(tiny_model, texts):
    judge = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=3, pad_token_id=0).eval()
    batch = texts(0) | {"label": np.array([0, 1, 2, 1, 0])}
    alone = [judge(input_ids=torch.tensor(r, dtype=torch.int64)[None]).logits[0] for r in batch["input_ids"]]
    expected = torch.nn.functional.cross_entropy(torch.stack(alone), torch.tensor(batch["label"]), reduction="sum")
    output = classification(judge, batch, context())
    torch.testing.assert_close(output.total, expected, rtol=1e-4, atol=1e-4)
    assert output.weight == 5.0


def test_advantages_with_lambda_one_are_what_is_still_to_come_less_the_value():
    advantages, returns = gae([0.0, 0.0, 1.0], [0.2, 0.5, 0.7], lam=1.0)
    np.testing.assert_allclose(returns, [1.0, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(advantages, [0.8, 0.5, 0.3], rtol=1e-6)
    assert gae([0.0, 0.0, 1.0], [0.2, 0.5, 0.7], lam=0.0)[0] == pytest.approx([0.3, 0.2, 0.3])
