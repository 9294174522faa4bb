"""A loss reads each column of a collator, in each of its shapes, as the judge does, or refuses it: `collators.yaml`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaForTokenClassification

from rolemesh import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training import losses
from rolemesh_training.contract import LossContext
from rolemesh_training.foreign import REMEDIES

TABLE = yaml.safe_load((Path(__file__).parent / "collators.yaml").read_text(encoding="utf-8"))
CPU = torch.device("cpu")
TEXTS = [[5, 6, 7, 8, 9], [3, 4], [10, 11, 12, 13]]
PROMPTS = [[3, 4], [3, 4], [5]]
MASKS = [[0, 1, 1, 1, 0], [1, 0], [1, 1, 1, 0]]
PADDED = [row + [0] * (5 - len(row)) for row in TEXTS]
SIZES: dict[str, int] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}
LOSSES = ["causal_lm", "distill", "classification", "grpo", "ppo", "value", "dpo"]
OPTIONS: dict[str, dict[str, Any]] = {"grpo": {"kl_coef": 0.1}, "ppo": {"kl_coef": 0.1}}


def ragged(rows: list[Any], dtype: Any = np.int32) -> Ragged:
    return Ragged.from_rows([np.asarray(row) for row in rows], dtype)


def numbers(seed: int, rows: list[list[int]] = TEXTS) -> Ragged:
    return ragged([np.random.default_rng(seed).normal(-1, 0.5, len(row)) for row in rows], np.float32)


def rows_of(loss: str) -> dict[str, Any]:
    if loss == "causal_lm":
        return {"input_ids": ragged(TEXTS)}
    if loss == "classification":
        return {"input_ids": ragged(TEXTS), "label": np.array([0, 2, 1])}
    if loss == "distill":
        top = [
            np.random.default_rng(n).permuted(np.tile(np.arange(32), (len(row), 1)), axis=1)[:, :4]
            for n, row in enumerate(TEXTS)
        ]
        scores = [np.random.default_rng(n).normal(size=(len(row), 4)) for n, row in enumerate(TEXTS)]
        return {"input_ids": ragged(TEXTS), "teacher_ids": ragged(top), "teacher_logits": ragged(scores, np.float32)}
    if loss == "dpo":
        pair = {"prompt_ids": ragged(PROMPTS), "chosen_ids": ragged(TEXTS), "rejected_ids": ragged(TEXTS[::-1])}
        return pair | {"ref_chosen": np.float32([-6, -4, -9]), "ref_rejected": np.float32([-3, -9, -5])}
    found = {"prompt_ids": ragged(PROMPTS), "completion_ids": ragged(TEXTS)}
    if loss == "value":
        return found | {"returns": numbers(3), "values": numbers(4)}
    found |= {"logprobs": numbers(0), "ref_logprobs": numbers(1)}
    return found | ({"advantage": np.float32([1, -0.5, 2])} if loss == "grpo" else {"advantages": numbers(2)})


@pytest.fixture(scope="module")
def models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    text = LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.3)).eval()
    classes = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=3, initializer_range=0.3)).eval()
    critic = LlamaForTokenClassification(LlamaConfig(**SIZES, num_labels=1, initializer_range=0.3)).eval()
    return {**dict.fromkeys(LOSSES, text), "classification": classes, "value": critic}


def column(name: str, shape: str, loss: str, rows: dict[str, Any]) -> Any:
    """Return a column of that shape with values that matter: those of `rows`, masks, labels, or numbers."""
    if name in rows:
        own = rows[name]
        if shape in ("tokens 1", "rows 1"):
            return Ragged(own.values[:, None], own.offsets) if isinstance(own, Ragged) else own[:, None]
        return own
    if shape in ("rows", "rows 1"):
        found = np.array([0, 2, 1])
        return found if shape == "rows" else found[:, None]
    values = MASKS
    if name == "labels":
        values = [
            [token if seen else -100 for token, seen in zip(*pair, strict=True)]
            for pair in zip(TEXTS, MASKS, strict=True)
        ]
    elif name == "attention_mask":
        values = [[1] * len(row) for row in TEXTS]
    if shape == "padded":
        return np.array([row + [-100 if name == "labels" else 0] * (5 - len(row)) for row in values])
    found = ragged(values)
    return Ragged(found.values[:, None], found.offsets) if shape == "tokens 1" else found


def given(name: str, shape: str, loss: str) -> dict[str, Any]:
    """Return the rows of the loss with the column, in the layout that a collator with this shape makes."""
    rows = rows_of(loss)
    if name in ("label_ids", "labels") and loss == "classification":
        rows.pop("label")
    found = rows | {name: column(name, shape, loss, rows)}
    if shape != "padded":
        return found
    for other, value in list(found.items()):
        if other in ("input_ids", "completion_ids"):
            found[other] = np.array(PADDED)
        elif isinstance(value, Ragged) and (value.values.ndim > 1 or value.values.dtype == np.float32):
            rest = [np.zeros((5 - len(row), *row.shape[1:]), row.dtype) for row in value]
            found[other] = np.stack([np.concatenate(pair) for pair in zip(value, rest, strict=True)])
    return found


def found(loss: str, model: Any, rows: dict[str, Any]) -> tuple[float, float]:
    output = getattr(losses, loss)(model, Batch(rows), LossContext(CPU, 0, 0, OPTIONS.get(loss, {})))
    return float(output.total) / max(1.0, float(output.weight)), float(output.weight)


def judged(name: str, loss: str, model: Any) -> tuple[float, float]:
    """Return the loss of transformers, or of rows that need no such column."""
    ids, seen = torch.tensor(PADDED), torch.tensor(PADDED) > 0
    if loss == "classification":
        return float(model(input_ids=ids, attention_mask=seen.long(), labels=torch.tensor([0, 2, 1])).loss), 3.0
    if loss == "causal_lm":
        counted = seen if name == "attention_mask" else torch.tensor([row + [0] * (5 - len(row)) for row in MASKS]) > 0
        labels = torch.where(counted, ids, -100)
        judge = model(input_ids=ids, attention_mask=seen.long(), labels=labels)
        return float(judge.loss), float((labels[:, 1:] != -100).sum())
    rows = rows_of(loss)
    if loss == "distill":
        logits = model(input_ids=ids).logits
        at = [(i, j) for i, row in enumerate(MASKS) for j in range(len(row) - 1) if row[j + 1]]
        terms = []
        for i, j in at:
            top, teacher = (torch.tensor(rows[n][i][j]) for n in ("teacher_ids", "teacher_logits"))
            own = logits[i, j].log_softmax(-1)[top.long()]
            terms.append((teacher.softmax(-1) * (teacher.log_softmax(-1) - own)).sum())
        return float(torch.stack(terms).mean()), float(len(at))
    if name != "completion_mask":
        return found(loss, model, rows)
    # A token that does not count is context: the prompt's, or followed by nothing that counts.
    parts: list[tuple[float, float]] = []
    for i, mask in enumerate(MASKS):
        first, last = mask.index(1), len(mask) - mask[::-1].index(1)
        cut = {n: ragged([c[i][first:last]], c.values.dtype) for n, c in rows.items() if isinstance(c, Ragged)}
        cut["prompt_ids"] = ragged([[*PROMPTS[i], *TEXTS[i][:first]]])
        cut |= {n: c[i : i + 1] for n, c in rows.items() if not isinstance(c, Ragged)}
        parts.append(found(loss, model, cut))
    weight = sum(each for _, each in parts)
    return sum(mean * each for mean, each in parts) / weight, weight


def outcome(name: str, loss: str) -> str:
    return next((what for what in ("used", "data") if loss in TABLE[name].get(what, ())), "refused")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_uses_or_refuses_each_column_of_a_collator(models, loss):
    model, wrong = models[loss], []
    with torch.no_grad():
        for name, shape in ((name, shape) for name, said in TABLE.items() for shape in said["shapes"]):
            wanted = outcome(name, loss)
            try:
                rows = given(name, shape, loss)
                result: Any = found(loss, model, rows)
            except RolemeshError as error:
                result = error
            if wanted == "refused":
                good = isinstance(result, RolemeshError) and repr(name) in result.what and loss in result.what
                good = good and bool(result.remedy)
            else:
                judge = judged(name, loss, model) if wanted == "used" else found(loss, model, rows_of(loss))
                padded = wanted == "data" and shape == "padded"  # padding without a mask is text, to the judge too
                good = not isinstance(result, RolemeshError) and (padded or result == pytest.approx(judge, rel=1e-4))
            if not good:
                wrong.append(f"{name} ({shape}): wanted {wanted}, found {result}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("problem", "number", "labels"),
    [
        (None, 3, np.array([0, -100, 1])),
        ("multi_label_classification", 3, np.float32([[1, 0, 1], [0, 1, 0], [1, 1, 1]])),
        ("multi_label_classification", 1, np.float32([[1], [0], [1]])),
        (None, 3, np.float32([[1, 0, 1], [0, 1, 0], [1, 1, 1]])),
        ("regression", 3, np.float32([[0.1, 0.9, 2], [1, -1, 0.5], [0, 0, 3]])),
        (None, 1, np.float32([[0.5], [2], [-1]])),
        (None, 1, np.array([1, 0, 2])),
    ],
)
def test_labels_mean_what_they_mean_to_transformers(problem, number, labels):
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=number, problem_type=problem)).eval()
    ids = torch.tensor(PADDED)
    result = found("classification", model, {"input_ids": ragged(TEXTS), "labels": labels})
    target = torch.tensor(labels).float() if number == 1 else torch.tensor(labels)
    judge = model(input_ids=ids, attention_mask=(ids > 0).long(), labels=target).loss
    assert result[0] == pytest.approx(float(judge), rel=1e-5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": np.array([0, 5, 1])}, "row 1: the column 'label' has the label 5 for a model of 3 labels"),
        ({"label": np.float32([0, 2, 1])}, r"of float32 in the shape \(3,\); multi_label_classification of 3 labels"),
        ({"label": np.array([0, 2, 1]), "labels": np.array([0, 2, 1])}, "the rows have label and labels"),
        ({}, "the rows have no column with labels"),
    ],
)
def test_labels_that_fit_no_classifier_are_refused(models, columns, message):
    models["classification"].config.problem_type = None  # where transformers' loss has kept its guess
    with pytest.raises(RolemeshError, match=message):
        found("classification", models["classification"], {"input_ids": ragged(TEXTS), **columns})


@pytest.mark.parametrize(
    ("loss", "columns", "message"),
    [
        ("causal_lm", {"input_ids": ragged(TEXTS, np.float32)}, "'input_ids' has other values than token ids"),
        ("causal_lm", {"input_ids": ragged([[5, -100], [3], [4]])}, "row 0: the column 'input_ids' has other values"),
        (
            "grpo",
            {"completion_ids": Ragged(ragged(TEXTS).values[:, None], ragged(TEXTS).offsets)},
            "'completion_ids' has other",
        ),
        ("grpo", {"advantage": np.ones((3, 2), np.float32)}, r"'advantage' has the shape \(3, 2\) for 3 rows"),
        ("ppo", {"advantages": np.ones(3, np.float32)}, "'advantages' has 1 entries for 5 completion tokens"),
        ("dpo", {"ref_chosen": np.ones((3, 2), np.float32)}, r"'ref_chosen' has the shape \(3, 2\)"),
        ("distill", {"teacher_ids": ragged(TEXTS)}, "have the shapes"),
    ],
)
def test_a_shape_that_a_loss_would_misread_is_refused(models, loss, columns, message):
    with pytest.raises(RolemeshError, match=message):
        found(loss, models[loss], rows_of(loss) | columns)


def test_every_column_that_a_loss_may_refuse_is_in_the_table():
    assert not set(REMEDIES) - set(TABLE)


TEXT = {
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "prompt_ids",
    "completion_ids",
    "chosen_ids",
    "rejected_ids",
    "input_ids",
}
"""Columns of TRL and transformers that have texts or their tokens."""


@pytest.mark.soak
def test_the_table_has_each_column_that_a_collator_of_the_judges_makes():
    import transformers

    folder = Path(sys.prefix, "judges", "trl")
    if not folder.is_dir():
        pytest.skip(f"TRL is not installed in {folder}: make judges")
    sources = [*folder.glob("trainer/*.py"), Path(transformers.__file__).parent / "data/data_collator.py"]
    made = {name for source in sources for name in assigned(ast.parse(source.read_text(encoding="utf-8")))}
    assert len(made) > 40
    assert not made - set(TABLE) - TEXT


def assigned(tree: ast.AST) -> Iterator[str]:
    """Yield the keys that collators, and TRL's preparation of rows, assign."""
    functions = ("_generate_and_score_completions", "tokenize_fn")

    def collates(node: ast.AST) -> bool:
        if isinstance(node, ast.ClassDef):
            return "Collator" in node.name
        return isinstance(node, ast.FunctionDef) and node.name in functions

    for owner in filter(collates, ast.walk(tree)):
        assigned_to = [t for node in ast.walk(owner) if isinstance(node, ast.Assign) for t in node.targets]
        for part in (part for target in assigned_to for part in ast.walk(target)):
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
                yield from (key for key in [part.slice.value] if isinstance(key, str))
