"""Losses that a user writes, that run the model too often, or that are not finite; and the schedule of updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rolemesh import Ragged
from rolemesh.api.workload import RankContext
from rolemesh_fsdp import FSDPOptions, FSDPWorkload


def trainer(model, tmp_path, loss, **options):
    (tmp_path / "flow.py").write_text(loss)
    given = {"model": str(model), "loss": "flow.py:loss", **options}
    workload = FSDPWorkload(FSDPOptions.model_validate(given, context={"base": str(tmp_path)}))
    workload.setup(RankContext())
    return workload


def test_a_loss_that_runs_the_model_twice_is_refused(tiny_model, tmp_path, texts):
    twice = (
        "from rolemesh_training import losses\n"
        "def loss(model, batch, ctx):\n"
        "    losses.causal_lm(model, batch, ctx)\n"
        "    return losses.causal_lm(model, batch, ctx)\n"
    )
    with pytest.raises(RuntimeError, match="ran the model 2 times on a micro-batch; it must run it exactly once"):
        trainer(tiny_model, tmp_path, twice).train(texts(0))


def test_a_loss_that_is_not_finite_stops_the_job_before_the_update(tiny_model, tmp_path, texts):
    infinite = (
        "from dataclasses import replace\n"
        "from rolemesh_training import losses\n"
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
    workload, rates = FSDPWorkload(options), []
    context = RankContext()
    workload.setup(context)
    for step in range(6):
        context.port.means.clear()
        workload.train(texts(step))
        rates.append(context.port.means["lr"][0])
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_updates_that_teach_nothing_are_told_once_and_fail_a_job_that_learns_nothing(tiny_model, texts):
    def started(**options):
        workload, context = FSDPWorkload(FSDPOptions(model=str(tiny_model), **options)), RankContext()
        workload.setup(context)
        return workload, context

    rows = texts(0)
    nothing = Ragged.from_rows([np.zeros(len(row), np.int8) for row in rows["input_ids"]], np.int8)
    workload, context = started(weight_decay=0.1)
    assert workload.verdict() == "", "a job that only evaluates must not fail"
    workload.train(rows | {"loss_mask": nothing})
    workload.train(rows | {"loss_mask": nothing})
    assert [text for name, text in context.port.records.items() if name.startswith("warning")] == [
        "row 0 has no target: its mask or its labels count no token; further ones are counted only "
        "(rows_without_target)",
        "update 1 taught nothing: `loss_mask` is 0 for every token that could be predicted",
    ]
    assert context.port.sums["useless_updates"] == 2
    assert "none of 2 updates changed a weight" in workload.verdict()
    assert started(if_nothing_learned="done")[0].verdict() == ""
    again, _ = started()
    again.restore(workload.snapshot())
    assert again.verdict() == workload.verdict(), "a resumed job with nothing left to do ends as before"
    again.train(rows)
    assert again.verdict() == ""


def test_a_learning_rate_of_zero_is_told(tiny_model, texts):
    options = FSDPOptions(model=str(tiny_model), schedule="linear", schedule_updates=1)
    workload, context = FSDPWorkload(options), RankContext()
    workload.setup(context)
    for step in range(3):
        workload.train(texts(step))
    assert [text for name, text in context.port.records.items() if name.startswith("warning")] == [
        "update 2 taught nothing: the learning rate is 0 after update 1, the end of the schedule linear; set "
        "schedule_updates or min_lr_ratio higher if updates 2 and later are to count"
    ]
    assert workload.verdict() == ""


def test_the_loss_in_the_readme_trains(tiny_model, tmp_path, texts):
    readme = (Path(__file__).parents[2] / "training" / "README.md").read_text()
    source = readme.split("```python\n")[1].split("```")[0].replace("def next_token", "def loss")
    workload = trainer(tiny_model, tmp_path, source)
    before = workload.snapshot()["model"]["model.norm.weight"].data.clone()
    workload.train(texts(0))
    assert not torch.equal(workload.snapshot()["model"]["model.norm.weight"].data, before)
