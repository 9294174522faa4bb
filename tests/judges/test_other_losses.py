"""`causal_lm`, `dpo`, `value`, `classification`, `distill` and `gae` against those who are known to be right."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from tests.judges import trl_side
from tests.judges.sides import (
    CPU,
    LENGTHS,
    VOCABULARY,
    Side,
    agree,
    gradient,
    loaded,
    logprobs_of,
    ours,
    rollouts,
    tokenizer,
)

from rolemesh.api.batch import Batch, Ragged
from rolemesh_training import LossContext
from rolemesh_training.advantages import gae
from rolemesh_training.losses import causal_lm, classification, distill, dpo, value

pytestmark = pytest.mark.soak


def trainer(model: Any, **more: Any) -> Any:
    """transformers' Trainer."""
    from transformers import Trainer, TrainingArguments

    return Trainer(model=model, args=TrainingArguments(tempfile.mkdtemp(), use_cpu=True, report_to=[], **more))


def of_trainer(folder: Any, batch: dict[str, torch.Tensor]) -> Side:
    """Return the Trainer's results for a collator's batch."""
    model = loaded(folder).eval()
    tokens = (batch["labels"][:, 1:] != -100).sum()
    loss = trainer(model).compute_loss(model, {**batch}, num_items_in_batch=tokens)
    return Side(float(loss), gradient(model, loss))


def masked(batch: dict[str, torch.Tensor]) -> Batch:
    """The rows of a collator's batch with `loss_mask` in place of padding and labels."""
    rows, masks = [], []
    for ids, labels, seen in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        rows.append(ids[seen != 0].numpy())
        masks.append((labels[seen != 0] != -100).numpy())
    return Batch({"input_ids": Ragged.from_rows(rows, np.int32), "loss_mask": Ragged.from_rows(masks, np.int8)})


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["language modeling", "completions only"])
def test_sft_has_the_gradient_of_the_trainer_with_its_collator(models, kind, side):
    from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

    words = tokenizer()
    words.padding_side = side
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, VOCABULARY, n).tolist() for n in (9, 3, 6, 4, 7, 2)]
    if kind == "completions only":
        examples = [{"input_ids": row, "labels": [-100] * (len(row) // 2) + row[len(row) // 2 :]} for row in rows]
        found = DataCollatorForSeq2Seq(words)(examples)
    else:
        found = DataCollatorForLanguageModeling(words, mlm=False)([{"input_ids": row} for row in rows])
        if side == "left":  # the Trainer lets padding predict a row's first token, which nothing can predict
            found["labels"][torch.arange(len(rows)), found["attention_mask"].argmax(1)] = -100
    wanted = of_trainer(models["llama"], dict(found))
    columns = Batch({name: column.numpy() for name, column in found.items()})
    agree(ours(models["llama"], causal_lm, columns), wanted)
    agree(ours(models["llama"], causal_lm, masked(found)), wanted)


@pytest.mark.usefixtures("trl")
def test_sft_on_completions_has_the_gradient_of_trls_sft_trainer(models):
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        completion_only_loss=True,
        **{name: value for name, value in trl_side.COMMON.items() if name != "disable_dropout"},
    )
    texts = {
        "prompt": ["w3 w4", "w5", "w6 w7 w8", "w9 w10"],
        "completion": [" w20", " w21 w22 w23", " w24", " w25 w26"],
    }
    judge = SFTTrainer(
        loaded(models["llama"]), args=arguments, train_dataset=trl_side.dataset(texts), processing_class=tokenizer()
    )
    found = next(iter(judge.get_train_dataloader()))
    assert 0 < int((found["labels"] != -100).sum()) < int(found["attention_mask"].sum())
    judge.model.train()
    loss = judge.compute_loss(judge.model, {**found}, num_items_in_batch=(found["labels"] != -100).sum())
    wanted = Side(float(loss), gradient(judge.model, loss))
    agree(ours(models["llama"], causal_lm, Batch({n: c.numpy() for n, c in found.items()})), wanted)
    agree(ours(models["llama"], causal_lm, masked(found)), wanted)


@pytest.mark.usefixtures("trl")
@pytest.mark.parametrize("pack", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("lengths", [LENGTHS, (1, 4, 5, 1, 9, 2, 3, 3)], ids=["", "one token"])
def test_dpo_has_the_gradient_of_trls_dpo_trainer(models, lengths, pack):
    from trl import DPOConfig, DPOTrainer

    batch = rollouts(models["llama"], lengths=lengths, prompts=(4, 7, 4, 11))
    prompts = [[int(token) for token in batch["prompt_ids"][i]] for i in (0, 2, 4, 6)]
    chosen, rejected = ([[int(t) for t in batch["completion_ids"][i + side]] for i in (0, 2, 4, 6)] for side in (0, 1))
    judge = DPOTrainer(
        loaded(models["llama"]),
        ref_model=loaded(models["other"]),
        args=DPOConfig(output_dir=tempfile.mkdtemp(), beta=0.3, per_device_train_batch_size=4, **trl_side.COMMON),
        train_dataset=trl_side.dataset({"prompt": ["w3"], "chosen": [" w4"], "rejected": [" w5"]}),
        processing_class=tokenizer(),
    )
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = [dict(zip(names, each, strict=True)) for each in zip(prompts, chosen, rejected, strict=True)]
    judge.model.train()
    loss = judge._compute_loss(judge.model, judge.data_collator(rows), return_outputs=False)
    reference = loaded(models["other"]).eval()
    columns = {name: Ragged.from_rows([row[name] for row in rows], np.int32) for name in names}
    for name, texts in (("ref_chosen", chosen), ("ref_rejected", rejected)):
        pairs = zip(prompts, texts, strict=True)
        columns[name] = np.float32([logprobs_of(reference, prompt, text).sum() for prompt, text in pairs])
    agree(
        ours(models["llama"], dpo, Batch(columns), beta=0.3, pack=pack), Side(float(loss), gradient(judge.model, loss))
    )


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_is_that_of_the_paper(models, clip):
    """Half of Ouyang et al., arXiv:2203.02155, as published in their summarize-from-feedback code, row by row."""
    from transformers import AutoModelForTokenClassification

    def critic() -> Any:
        torch.manual_seed(3)
        return AutoModelForTokenClassification.from_pretrained(
            models["llama"], num_labels=1, dtype=torch.float32
        ).eval()

    batch = rollouts(models["llama"], lengths=(5, 1, 9, 0, 7, 2, 4, 6))
    rng = np.random.default_rng(4)
    lengths = np.diff(batch["completion_ids"].offsets)
    old, returns = ([rng.normal(0, 0.5, n).astype(np.float32) for n in lengths] for _ in range(2))
    batch = batch | {"values": Ragged.from_rows(old, np.float32), "returns": Ragged.from_rows(returns, np.float32)}
    judge, terms = critic(), []
    for i in range(batch.rows):
        prompt, completion = batch["prompt_ids"][i], batch["completion_ids"][i]
        ids = torch.tensor(np.concatenate([prompt, completion]), dtype=torch.int64)
        found = judge(input_ids=ids[None]).logits[0, len(prompt) - 1 : len(ids) - 1, 0]
        before, target = torch.tensor(old[i]), torch.tensor(returns[i])
        error = (found - target) ** 2
        if clip is not None:
            inside = torch.max(torch.min(found, before + clip), before - clip)
            error = torch.max(error, (inside - target) ** 2)
        terms.append(0.5 * error)
    loss = torch.cat(terms).mean()
    wanted = Side(float(loss), gradient(judge, loss))
    model = critic()
    output = value(model, batch, LossContext(CPU, 0, 0, {"clip": clip}))
    mean = output.total / output.weight
    agree(Side(float(mean), gradient(model, mean)), wanted)


@pytest.mark.parametrize("labels", [3, 1])
def test_classification_has_the_gradient_of_the_trainer(models, labels):
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

    def judge() -> Any:
        torch.manual_seed(3)
        found = AutoModelForSequenceClassification.from_pretrained(
            models["llama"], num_labels=labels, dtype=torch.float32
        )
        return found.eval()

    rng = np.random.default_rng(5)
    rows = [rng.integers(3, VOCABULARY, n).tolist() for n in (9, 1, 6, 4, 7)]
    answers = rng.integers(0, labels, 5) if labels > 1 else rng.normal(size=5).astype(np.float32)
    found = dict(DataCollatorWithPadding(tokenizer())([{"input_ids": row} for row in rows]))
    model = judge()
    loss = trainer(model).compute_loss(model, found | {"labels": torch.tensor(answers)})
    wanted = Side(float(loss), gradient(model, loss))
    for batch in (
        {"input_ids": Ragged.from_rows(rows, np.int32), "label": answers},
        {name: column.numpy() for name, column in found.items()} | {"labels": answers},
    ):
        own = judge()
        output = classification(own, Batch(batch), LossContext(CPU, 0, 0, {}))
        mean = output.total / output.weight
        agree(Side(float(mean), gradient(own, mean)), wanted)


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.0), (2.0, 0.3)])
def test_distillation_from_all_tokens_is_torchs_kl_divergence(models, temperature, alpha):
    from torch.nn.functional import cross_entropy, kl_div

    rng = np.random.default_rng(6)
    rows = [rng.integers(3, VOCABULARY, 8) for _ in range(3)]
    ids = torch.tensor(np.stack(rows))
    with torch.no_grad():
        teacher = loaded(models["other"]).eval()(input_ids=ids).logits
    model = loaded(models["llama"]).eval()
    logits = model(input_ids=ids).logits[:, :-1]
    log = (logits / temperature).log_softmax(-1).flatten(0, 1)
    target = (teacher[:, :-1] / temperature).log_softmax(-1).flatten(0, 1)
    hard = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    soft = kl_div(log, target, log_target=True, reduction="batchmean")
    loss = (1 - alpha) * temperature**2 * soft + alpha * hard
    wanted = Side(float(loss), gradient(model, loss))
    top = teacher.topk(VOCABULARY)
    offsets = np.arange(4) * 8
    batch = Batch(
        {
            "input_ids": Ragged.from_rows(rows, np.int32),
            "teacher_ids": Ragged(top.indices.flatten(0, 1).numpy(), offsets),
            "teacher_logits": Ragged(top.values.flatten(0, 1).numpy(), offsets),
        }
    )
    agree(ours(models["llama"], distill, batch, temperature=temperature, alpha=alpha), wanted)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.99, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 9])
def test_advantages_are_the_sum_of_the_paper(tokens, gamma, lam):
    """Equation 16 of arXiv:1506.02438, as a double sum."""
    rng = np.random.default_rng(tokens)
    rewards, values = rng.normal(size=tokens), rng.normal(size=tokens)
    after = np.append(values, 0.0)
    errors = [rewards[t] + gamma * after[t + 1] - after[t] for t in range(tokens)]
    wanted = [sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, tokens)) for t in range(tokens)]
    advantages, returns = gae(rewards, values, gamma=gamma, lam=lam)
    np.testing.assert_allclose(advantages, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(returns, np.array(wanted) + values, rtol=1e-5, atol=1e-6)
