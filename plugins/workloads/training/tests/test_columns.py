"""A loss and its columns: those of a Hugging Face collator, wrong lengths, values that are not numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rolemesh import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training import losses
from rolemesh_training.advantages import gae
from rolemesh_training.contract import LossContext

IDS = np.array([[3, 4, 5, 6, 7], [3, 4, 5, 0, 0]])
LABELS = np.array([[-100, 4, 5, 6, 7], [-100, -100, 5, -100, -100]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).eval()


def causal_lm(model, **columns):
    with torch.no_grad():
        found = losses.causal_lm(model, Batch(columns), LossContext(torch.device("cpu"), 0, 0))
    return found.total.item() / max(1.0, found.weight), found.weight


@pytest.mark.parametrize("mask", [None, MASK])
def test_the_rows_of_a_collator_have_the_models_own_loss(model, mask):
    given = {} if mask is None else {"attention_mask": mask}
    with torch.no_grad():
        judge = model(**{n: torch.tensor(v) for n, v in {"input_ids": IDS, "labels": LABELS, **given}.items()})
    loss, weight = causal_lm(model, input_ids=IDS, labels=LABELS, **given)
    assert (loss, weight) == (pytest.approx(judge.loss.item(), rel=1e-5), 5)


def test_masks_and_labels_may_be_of_any_type_of_number(model):
    wanted = causal_lm(model, input_ids=IDS, labels=LABELS, attention_mask=MASK)
    assert causal_lm(model, input_ids=IDS, labels=LABELS.astype(np.float32), attention_mask=MASK == 1) == wanted
    masked = causal_lm(model, input_ids=IDS, loss_mask=MASK)
    assert causal_lm(model, input_ids=IDS, loss_mask=MASK.astype(np.float32)) == masked
    assert causal_lm(model, input_ids=IDS, loss_mask=MASK == 1) == masked


def test_padding_on_the_left_changes_nothing(model):
    padded = causal_lm(model, input_ids=IDS[:, ::-1], attention_mask=MASK[:, ::-1])
    alone = causal_lm(model, input_ids=Ragged.from_rows([IDS[0, ::-1], IDS[1, 2::-1]], np.int64))
    assert padded == (pytest.approx(alone[0], rel=1e-5), 6)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"loss_mask": Ragged.from_rows([[0, 1], [1] * 5], np.int8)},
            "row 0: the column 'loss_mask' has 2 entries for 5 tokens",
        ),
        (
            {"labels": Ragged.from_rows([[1] * 5, [1] * 6], np.int32)},
            "row 1: the column 'labels' has 6 entries for 5 tokens",
        ),
        ({"labels": LABELS, "loss_mask": MASK}, "the rows have 'labels' and 'loss_mask'"),
        ({"attention_mask": MASK[:, :4]}, "'attention_mask' has 4 entries for 5 tokens"),
        ({"attention_mask": np.array([[1] * 5, [1, 0, 1, 1, 1]])}, "leaves out tokens between others"),
        (
            {"attention_mask": np.where(MASK == 1, 0, -np.inf)},
            "row 1: the column 'attention_mask' has other entries than 0",
        ),
        ({"loss_mask": np.where(MASK == 1, 0.5, 0)}, "row 0: the column 'loss_mask' has other entries than 0 and 1"),
        ({"loss_mask": np.where(MASK == 1, 1, np.nan)}, "row 1: the column 'loss_mask' has other entries than 0 and 1"),
        ({"loss_mask": MASK.astype(str)}, "row 0: the column 'loss_mask' has other entries than 0 and 1"),
        ({"completion_mask": np.where(MASK == 1, 1, None)}, "row 1: the column 'completion_mask' has other entries"),
        ({"labels": LABELS + 0.5}, "row 0: the column 'labels' has other entries than token ids and -100"),
        (
            {"labels": np.where(LABELS < 0, np.nan, LABELS)},
            "row 0: the column 'labels' has other entries than token ids",
        ),
        ({"labels": np.where(LABELS < 0, -1, LABELS)}, "row 0: the column 'labels' has other entries than token ids"),
        ({"position_ids": IDS}, "'position_ids', which causal_lm does not read"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(model, columns, message):
    with pytest.raises(RolemeshError, match=message):
        causal_lm(model, input_ids=IDS, **columns)


ROWS = {
    "prompt_ids": Ragged.from_rows([[3], [4]], np.int32),
    "completion_ids": Ragged.from_rows([[5, 6], [7]], np.int32),
    "logprobs": Ragged.from_rows([[-1.0, -1.0], [-1.0]], np.float32),
    "advantage": np.ones(2, np.float32),
    "index": np.array([40, 41]),
}
SPOILT = Ragged.from_rows([[-1.0, -1.0], [np.nan]], np.float32)


@pytest.mark.parametrize(
    ("loss", "columns", "message"),
    [
        ("grpo", {"advantage": [1.0, None]}, "index 41: the column 'advantage' is nan"),
        ("grpo", {"advantage": np.float32([1, np.inf])}, "index 41: the column 'advantage' is inf"),
        ("grpo", {"logprobs": SPOILT}, "index 41: the column 'logprobs' is nan"),
        ("ppo", {"advantages": SPOILT}, "index 41: the column 'advantages' is nan"),
        ("value", {"returns": SPOILT, "values": ROWS["logprobs"]}, "index 41: the column 'returns' is nan"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_row(model, loss, columns, message):
    with pytest.raises(RolemeshError, match=message):
        getattr(losses, loss)(model, Batch({**ROWS, **columns}), LossContext(torch.device("cpu"), 0, 0))


def test_advantages_of_a_completion_need_finite_rewards_and_values():
    with pytest.raises(ValueError, match="the reward of token 1 is nan"):
        gae([0.0, np.nan], [0.0, 0.0])
