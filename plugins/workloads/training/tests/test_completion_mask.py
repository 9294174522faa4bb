"""Tokens that an environment wrote are context: no loss, metric or mean counts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training import LossContext
from rolemesh_training.advantages import gae
from rolemesh_training.completions import Completions
from rolemesh_training.losses import grpo, ppo, value
from rolemesh_training.packing import completion_logprobs

CPU = torch.device("cpu")
MASKS = ([1, 0, 0, 1], [1], [0, 1], [1, 1, 0, 0, 1, 0], [0, 0, 0], [0, 1, 1, 0, 1])
OPTIONS = [
    {},
    {"pack": False},
    {"aggregation": "sequence_mean"},
    {"aggregation": "constant", "aggregation_length": 4},
    {"ratio": "sequence"},
    {"objective": "cispo"},
    {"kl_coef": 0.3},
    {"importance_sampling": "sequence", "importance_sampling_cap": 2.0},
]


@pytest.fixture
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture
def conversations(rollouts):
    """Rows of an agent: log-probabilities are 0 where the environment wrote the token."""
    batch = rollouts(0, (1.0, -1.0, 0.5, 0.7, -0.5, 2.0))
    mask = Ragged.from_rows(MASKS, np.uint8)
    logprobs = Ragged(batch["logprobs"].values * mask.values, mask.offsets)
    return batch | {"completion_mask": mask, "logprobs": logprobs, "ref_logprobs": logprobs}


def context(**options):
    return LossContext(CPU, step=0, version=0, options=options)


def gradient(model, total):
    found = torch.autograd.grad(total, list(model.parameters()))
    return torch.cat([each.flatten() for each in found])


def other_column(batch, name, value):
    """The batch with `value` in place of the column's numbers of tokens that were not sampled."""
    column, mask = batch[name], batch["completion_mask"].values != 0
    return batch | {name: Ragged(np.where(mask, column.values, np.asarray(value, column.values.dtype)), column.offsets)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_mask_of_ones_changes_no_bit(model, conversations, options):
    plain = {name: column for name, column in conversations.items() if name != "completion_mask"}
    ones = Ragged(np.ones(len(conversations["completion_ids"].values), np.uint8), conversations["logprobs"].offsets)
    one, other = (grpo(model, Batch(rows), context(**options)) for rows in (plain, plain | {"completion_mask": ones}))
    assert (float(one.total), one.weight) == (float(other.total), other.weight)
    assert torch.equal(gradient(model, one.total), gradient(model, other.total))
    assert {n: (float(a), b) for n, (a, b) in one.metrics.items()} == {
        n: (float(a), b) for n, (a, b) in other.metrics.items()
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_columns_of_tokens_that_were_not_sampled_have_no_influence(model, conversations, options):
    changed = other_column(other_column(conversations, "logprobs", -7.0), "ref_logprobs", 3.0)
    one, other = (grpo(model, rows, context(**options)) for rows in (conversations, changed))
    assert torch.equal(gradient(model, one.total), gradient(model, other.total))
    assert {name: float(total) for name, (total, _) in one.metrics.items()} == {
        name: float(total) for name, (total, _) in other.metrics.items()
    }
    assert {weight for _, weight in one.metrics.values()} == {10.0}


def test_grpo_is_the_clipped_objective_over_sampled_tokens(model, conversations):
    batch = conversations
    mask = torch.from_numpy(batch["completion_mask"].values != 0)
    new = completion_logprobs(model, batch["prompt_ids"], batch["completion_ids"], CPU, packed=False)[mask]
    advantage = torch.from_numpy(np.repeat(batch["advantage"], np.diff(batch["completion_ids"].offsets)))[mask]
    ratio = (new - torch.from_numpy(batch["logprobs"].values)[mask]).exp()
    expected = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    output = grpo(model, batch, context())
    assert output.weight == 10.0
    torch.testing.assert_close(output.total, expected.sum(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient(model, output.total), gradient(model, expected.sum()), rtol=1e-4, atol=1e-4)
    rows = expected.split([int(sum(row)) for row in MASKS])
    of_rows = grpo(model, batch, context(aggregation="sequence_mean"))
    assert of_rows.weight == 6.0
    torch.testing.assert_close(of_rows.total, sum(row.mean() for row in rows if len(row)), rtol=1e-4, atol=1e-4)


def test_a_token_of_the_environment_is_context(model, conversations):
    ids = conversations["completion_ids"]
    values = ids.values.copy()
    values[1] = (values[1] + 1) % 61  # the second token of the first row, which the environment wrote
    changed = conversations | {"completion_ids": Ragged(values, ids.offsets)}
    one, other = (grpo(model, rows, context()) for rows in (conversations, changed))
    assert float(one.total) != float(other.total), "the sampled tokens after it see it"
    assert one.weight == other.weight


def test_ppo_and_the_critic_count_sampled_tokens_only(tiny_model, model, conversations):
    offsets = conversations["completion_ids"].offsets
    noise = Ragged(np.random.default_rng(1).normal(size=int(offsets[-1])).astype(np.float32), offsets)
    batch = conversations | {"advantages": noise, "returns": noise, "values": noise}
    critic = AutoModelForTokenClassification.from_pretrained(tiny_model, num_labels=1).eval()
    for loss, policy, name in ((ppo, model, "advantages"), (value, critic, "returns"), (value, critic, "values")):
        one, other = (loss(policy, rows, context()) for rows in (batch, other_column(batch, name, 9.0)))
        assert one.weight == 10.0
        assert float(one.total) == float(other.total)


def test_rows_without_a_sampled_token_teach_nothing(model, conversations):
    mask = conversations["completion_mask"]
    none = conversations | {"completion_mask": Ragged(np.zeros_like(mask.values), mask.offsets)}
    output = grpo(model, none, context())
    assert output.weight == 0.0
    assert output.total.requires_grad
    assert float(output.total) == 0.0


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([[1, 0, 0], *MASKS[1:]], "'completion_mask' has 3 entries for 4 completion tokens"),
        ([[1, 0, 2, 1], *MASKS[1:]], "'completion_mask' has other entries than 0 and 1"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(model, conversations, mask, said):
    with pytest.raises(RolemeshError, match=said) as caught:
        grpo(model, conversations | {"completion_mask": Ragged.from_rows(mask, np.uint8)}, context())
    assert "row 0 (of group 0)" in str(caught.value)


def test_gae_goes_from_sampled_token_to_sampled_token():
    mask = np.array([0, 1, 1, 0, 0, 1, 0])
    rewards, values = np.array([0.5, 0.0, 0.1, 0.0, 0.2, 0.0, 1.0]), np.array([9.0, 0.2, 0.4, 9.0, 9.0, 0.6, 9.0])
    advantages, returns = gae(rewards, values, gamma=0.9, lam=0.8, sampled=mask)
    for found, wanted in zip(
        (advantages, returns), gae([0.5, 0.3, 1.0], [0.2, 0.4, 0.6], gamma=0.9, lam=0.8), strict=True
    ):
        np.testing.assert_allclose(found[mask != 0], wanted, rtol=1e-6)
        assert not found[mask == 0].any()
    assert not np.any(gae(rewards, values, sampled=np.zeros(7)))
    for one, other in zip(gae(rewards, values, sampled=np.ones(7)), gae(rewards, values), strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_of_sampled_tokens_return_to_their_places(conversations):
    rows = Completions.of(conversations, np.array([0, 3, 4]))
    found = rows.scattered(rows.column("logprobs", CPU))
    wanted = np.concatenate([conversations["logprobs"][row] for row in (0, 3, 4)])
    assert np.count_nonzero(wanted) == 5
    np.testing.assert_array_equal(found.numpy(), wanted)
