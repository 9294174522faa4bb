"""LoRA against peft: what a model with adapters says, its gradients and updates, and the exported folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainer_group
from tests.judges import test_updates as updates
from tests.judges.sides import VOCABULARY, loaded, tokenizer

from rolemesh.api.batch import Ragged
from rolemesh_checkpoint.reshard import merge
from rolemesh_ddp import DDPOptions, DDPWorkload
from rolemesh_training.lora import adapt
from rolemesh_training.options import LoRAOptions

pytestmark = pytest.mark.soak

TARGETS = {"all-linear": "all-linear", "two": ["q_proj", "v_proj"]}
UPDATED = {"lora": {"rank": 4, "alpha": 16}, "optimizer": "sgd", "momentum": 0.0, "lr": 1.0, "clip_norm": None}


def by_peft(folder: Path, **more: Any) -> Any:
    """The model with adapters whose B is not 0, so that each has a gradient."""
    from peft import LoraConfig, get_peft_model

    config = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **more}
    return get_peft_model(loaded(folder), LoraConfig(**config))


def numbered(model: torch.nn.Module) -> None:
    """Give each adapter seeded numbers, in the order of their names."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted((n.removeprefix("base_model.model."), p) for n, p in model.named_parameters()):
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=source))


@pytest.mark.parametrize("targets", TARGETS)
def test_a_model_with_adapters_says_what_pefts_model_says_with_its_gradients(models, targets):
    model, judge = loaded(models["llama"]), by_peft(models["llama"], target_modules=TARGETS[targets])
    adapt(model, LoRAOptions(rank=4, alpha=16, targets=TARGETS[targets]), "causal_lm", 0)
    ids = torch.randint(3, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    found = []
    for each in (model, judge):
        numbered(each)
        output = each(input_ids=ids, labels=ids)
        output.loss.backward()
        gradients = {n.removeprefix("base_model.model."): p.grad for n, p in each.named_parameters() if p.requires_grad}
        found.append((output.logits, gradients))
    (logits, own), (wanted, theirs) = found
    assert torch.equal(logits, wanted)
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in theirs)


def of_trainer(folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """peft's model after six updates of the Trainer, and the adapters that it began with."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = by_peft(folder)
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    more = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "weight_decay": 0.0}
    arguments = TrainingArguments(
        tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
        **{**updates.ARGUMENTS, **more},
    )  # fmt: skip
    judge = updates.in_order(Trainer)(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row} for rows in updates.texts() for row in rows],
        data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
    )
    judge.train()
    return model, start


@pytest.mark.parametrize(("workload", "shares"), [("fsdp", [5, 3]), ("ddp", [5, 3]), ("deepspeed", [4, 4])])
def test_updates_of_adapters_are_those_of_the_trainer_with_peft(models, groups, tmp_path, workload, shares):
    """From peft's own initial adapters: the trainers begin with a snapshot that holds them."""
    judge, start = of_trainer(models["llama"])
    named = {name.removeprefix("base_model.model.").replace(".default.", "."): p for name, p in start.items()}
    options = {"model": str(models["llama"]), **updates.SCHEDULE, **UPDATED}
    group, batches = groups(workload), [updates.rows(lists) for lists in updates.texts()]
    states = [each["state"] for each in group(trainer_group.train, len(shares), options, [], [0] * len(shares))]
    for state in states:
        for name, shard in state["model"].items():
            place = tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.data.shape, strict=True))
            shard.data[...] = named[name].numpy().reshape(shard.shape)[place]  # ZeRO's are flat
    results = group(trainer_group.continue_from, len(shares), options, states, batches, shares)
    wanted = {n.removeprefix("base_model.model.").replace(".default.", "."): p for n, p in judge.named_parameters()}
    wanted = {name: p.detach().numpy() for name, p in wanted.items() if name in named}
    found = trainer_group.assembled(results)
    assert updates.differ(found, wanted, {name: p.numpy() for name, p in named.items()}) < 1e-5
    if workload == "ddp":
        _exported(models["llama"], options, [each["state"] for each in results], judge, tmp_path / "out")


def _exported(folder: Path, options: dict[str, Any], states: list[Any], judge: Any, out: Path) -> None:
    """peft loads the exported adapters bit for bit, and the model says then what the Trainer's says."""
    from peft import PeftModel

    state = trainer_group.as_tensors(merge(states))
    DDPWorkload.export(DDPOptions.model_validate(options), state, out)
    model = PeftModel.from_pretrained(loaded(folder), out).eval()
    _holds(model, state)
    ids = torch.randint(3, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = model(input_ids=ids).logits, judge.eval()(input_ids=ids).logits
        before = loaded(folder).eval()(input_ids=ids).logits
    assert float((wanted - before).norm() / before.norm()) > 0.1
    assert float((found - wanted).norm() / wanted.norm()) < 1e-4


def _holds(model: torch.nn.Module, state: Any) -> None:
    """Fails unless each trained tensor is in peft's model, bit for bit."""
    names = {name: name.replace(".default", "").replace("modules_to_save.", "") for name, _ in model.named_parameters()}
    found = {names[name].removeprefix("base_model.model."): value.detach() for name, value in model.named_parameters()}
    assert state["model"]
    for name, tensor in state["model"].items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("task", ["classification", "value"])
def test_peft_loads_exported_adapters_with_their_head(models, groups, tmp_path, task):
    import transformers
    from peft import PeftModel

    kind = {"classification": "AutoModelForSequenceClassification", "value": "AutoModelForTokenClassification"}[task]
    options = {
        "model": str(models["llama"]), "task": task, "loss": f"rolemesh_training.losses:{task}", "lr": 0.05,
        "lora": {"rank": 4}, "init_seed": 3,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    batch = updates.rows([rng.integers(3, VOCABULARY, 6).tolist() for _ in range(4)])
    if task == "classification":
        batch = batch | {"label": np.array([0, 1, 1, 0])}
    else:
        numbers = Ragged.from_rows([np.ones(6)] * 4, np.float32)
        batch = batch | {"prompt_ids": batch["input_ids"], "completion_ids": batch["input_ids"]}
        batch = batch | {"returns": numbers, "values": numbers}
    (result,) = groups("ddp")(trainer_group.train, 1, options, [batch, batch], [4])
    state = trainer_group.as_tensors(merge([result["state"]]))
    DDPWorkload.export(DDPOptions.model_validate(options), state, tmp_path / "out")
    labels = 1 if task == "value" else 2
    base = getattr(transformers, kind).from_pretrained(models["llama"], num_labels=labels, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "out")
    assert any("score" in name for name in state["model"])
    _holds(model, state)
