"""Options on which roles must agree. `validate` compares them, and its error has both values and a remedy."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import rolemesh
from rolemesh import Batch, Broadcast, Job, Split, Workload, operator
from rolemesh.errors import RolemeshError

LOSSES = "rolemesh_training.losses:"


@rolemesh.flow
def grpo(job):
    job.rollout.evaluate(job.data.next())
    job.trainer.train(job.data.judge(job.rollout.generate(job.data.next())))
    job.rollout.load_weights(job.trainer.weights())


@rolemesh.flow
def with_reference(job):
    job.trainer.train(job.data.judge(job.reference.logprobs(job.rollout.generate(job.data.next()))))


@rolemesh.flow
def reference_last(job):
    job.trainer.train(job.reference.logprobs(job.data.judge(job.rollout.generate(job.data.next()))))


@rolemesh.flow
def on_evaluations(job):
    job.trainer.train(job.data.judge(job.rollout.evaluate(job.data.next())))


@rolemesh.flow
def without_rollout(job):
    job.trainer.train(job.data.judge(job.reference.logprobs(job.data.next())))


class Data(Workload):
    """Questions, and a judge between the rollout and the trainer."""

    @operator(returns=Split())
    def next(self) -> Batch:
        return Batch({})

    @operator(rows=Broadcast(), returns=Split())
    def judge(self, rows: Batch) -> Batch:
        return rows


@pytest.fixture
def checked(tiny_model: Path, tmp_path: Path) -> Any:
    """Validates a job and returns the text of what was wrong with it."""
    (tmp_path / "data.py").write_text("from test_agreement import Data\n")

    def check(flow: Any, rollout: dict[str, Any], trainer: dict[str, Any], reference: dict[str, Any]) -> str:
        job = Job("agree", base=tmp_path, steps=1).flow(flow).role("data", use="data.py:Data")
        if flow is not without_rollout:
            given = {"model": str(tiny_model), "max_tokens": 8, **rollout}
            job.role("rollout", use="vllm", options=given)
        if flow in (with_reference, reference_last, without_rollout):
            job.role("reference", use="fsdp", options={"model": str(tiny_model), "frozen": True, **reference})
        given = {"model": str(tiny_model), "loss": f"{LOSSES}grpo", **trainer}
        job.role("trainer", use="fsdp", options=given)
        try:
            prepared = job.validate()
        except RolemeshError as error:
            return str(error)
        check.warnings = "\n".join(prepared.warnings())  # type: ignore[attr-defined]
        return ""

    return check


@pytest.mark.parametrize(
    ("flow", "rollout", "loss", "said"),
    [
        (grpo, {"samples": 2}, {}, ""),
        (grpo, {"samples": 1}, {}, "rollout.generate makes one completion for each prompt"),
        (grpo, {}, {}, "set roles.rollout.options.samples to 2 or more"),
        (grpo, {"samples": 2}, {"kl_coef": 0.1}, "kl_coef is 0.1, and no call before trainer.train is `logprobs`"),
        (with_reference, {"samples": 2}, {"kl_coef": 0.1}, ""),
        (with_reference, {"samples": 2}, {}, ""),
        (reference_last, {"samples": 2}, {}, "reference.logprobs has no effect on the loss, because kl_coef is 0"),
    ],
)
def test_an_update_that_teaches_nothing_is_foreseen(checked, flow, rollout, loss, said):
    error = checked(flow, rollout, {"loss_options": loss}, {})
    assert error == ""
    assert said in checked.warnings if said else checked.warnings == ""


def test_one_sample_is_no_matter_to_a_loss_with_advantages_of_its_own(checked):
    assert checked(grpo, {"samples": 1}, {"loss": f"{LOSSES}ppo"}, {}) == ""
    assert checked.warnings == ""


def test_a_flow_that_trains_a_frozen_role_is_refused_before_the_start(checked):
    assert "the flow calls trainer.train, and the role is frozen" in checked(grpo, {}, {"frozen": True}, {})


@pytest.mark.parametrize(
    ("flow", "rollout", "trainer", "reference", "said"),
    [
        (grpo, {}, {}, {}, ""),
        (grpo, {"temperature": 0.5}, {}, {}, ""),
        (grpo, {"temperature": 0.5}, {"loss_options": {"temperature": 0.5}}, {}, ""),
        (grpo, {"temperature": 0.5}, {"loss_options": {"temperature": 1.0}}, {}, "at temperature 0.5, .* 1.0"),
        (grpo, {}, {"loss_options": {"temperature": 0.5}}, {}, "at temperature 1.0, .* 0.5"),
        (grpo, {"temperature": 0.0}, {}, {}, "greedy"),
        (grpo, {"temperature": 0.0}, {"loss": f"{LOSSES}causal_lm"}, {}, ""),
        (
            grpo,
            {"top_p": 0.7},
            {},
            {},
            r"rollout.generate, .* top_p 0.7[\s\S]*leave top_p out of roles.rollout.options",
        ),
        (grpo, {"top_p": 0.7}, {"loss_options": {"importance_sampling_cap": 2.0}}, {}, ""),
        (grpo, {"top_k": 9, "min_tokens": 2}, {"loss": f"{LOSSES}ppo"}, {}, "top_k 9, min_tokens 2"),
        (grpo, {"logit_bias": {3: 1.0}}, {}, {}, "logit_bias"),
        (on_evaluations, {}, {}, {}, "rollout.evaluate, .*greedy"),
        (with_reference, {"temperature": 0.5}, {}, {}, ""),
        (with_reference, {"temperature": 0.5}, {}, {"logprobs": {"temperature": 0.5}}, ""),
        (
            with_reference,
            {"temperature": 0.5},
            {},
            {"logprobs": {"temperature": 1.0}},
            r"reference computes .* 1.0, the loss at 0.5[\s\S]*roles.reference.options.logprobs.temperature to 0.5",
        ),
        (without_rollout, {}, {"loss_options": {"temperature": 0.7}}, {}, "reference computes .* 1.0, the loss at 0.7"),
        (
            without_rollout,
            {},
            {"loss": f"{LOSSES}dpo"},
            {"logprobs": {"temperature": 0.7}},
            "reference computes .* 0.7, the loss at 1.0",
        ),
        (with_reference, {"temperature": 0.7}, {"loss": f"{LOSSES}dpo"}, {}, "reference computes .* 0.7, .* at 1.0"),
        (with_reference, {"temperature": 0.7}, {"loss": f"{LOSSES}dpo"}, {"logprobs": {"temperature": 1.0}}, ""),
    ],
)
def test_settings_of_two_roles_are_derived_or_compared(checked, flow, rollout, trainer, reference, said):
    found = checked(flow, rollout, trainer, reference)
    assert re.search(said, found) if said else found == "", found
    assert ("roles.trainer.options" in found) is bool(said)


@pytest.mark.parametrize("remedy", ["importance_sampling_cap=2", "leave top_p out"])
def test_the_remedy_works_as_it_is_written(checked, remedy):
    wrong = checked(grpo, {"top_p": 0.7}, {}, {})
    if remedy.startswith("leave"):
        assert "leave top_p out of roles.rollout.options" in wrong
        assert checked(grpo, {}, {}, {}) == ""
        return
    override = re.search(r"\S+importance_sampling_cap=2", wrong)
    assert override is not None
    assert override[0] == "roles.trainer.options.loss_options.importance_sampling_cap=2"
    assert checked(grpo, {"top_p": 0.7}, {"loss_options": {"importance_sampling_cap": 2}}, {}) == ""


@pytest.fixture
def another(tiny_model: Path, tmp_path: Path) -> Any:
    """A copy of the model's folder with other settings and another tokenizer."""

    def make(name: str, words: list[str], **config: Any) -> str:
        folder = shutil.copytree(tiny_model, tmp_path / name)
        own = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(own | config))
        vocabulary = {word: place for place, word in enumerate(words)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
        return str(folder)

    return make


def test_token_ids_must_mean_the_same_to_all_that_take_them(checked, another):
    mine, same, other = (another(n, words) for n, words in (("a", ["x", "y"]), ("b", ["x", "y"]), ("c", ["y", "x"])))
    assert checked(grpo, {"model": mine}, {"model": same}, {}) == ""
    assert "2 tokens have other ids" in checked(grpo, {"model": mine}, {"model": other}, {})
    assert checked(on_evaluations, {"model": mine}, {"model": other, "loss": f"{LOSSES}causal_lm"}, {}) == ""
    found = checked(with_reference, {"model": mine}, {"model": mine}, {"model": other})
    assert "has another tokenizer" in found
    assert "roles.reference.options" in found


def test_weights_go_to_a_model_that_computes_the_same_with_them(checked, another):
    mine, same = another("a", ["x"]), another("b", ["x"], dtype="bfloat16")
    assert checked(grpo, {"model": mine}, {"model": same}, {}) == ""
    found = checked(grpo, {"model": mine}, {"model": another("c", ["x"], rms_norm_eps=0.1)}, {})
    assert re.search(r"roles.rollout.options.model.* of trainer, whose weights it takes: rms_norm_eps .* 0.1", found)


def test_layers_that_are_adapted_must_be_in_the_rollouts_checkpoint(checked):
    assert checked(grpo, {}, {"lora": {"targets": ["q_proj", "mlp.down_proj"]}}, {}) == ""
    found = checked(grpo, {}, {"lora": {"targets": ["q_proj", "lm_head"]}}, {})
    assert re.search(r"trainer adapts lm_head, .* tied head[\s\S]*roles.trainer.options.lora.targets", found)


def test_a_samplers_rows_are_followed_through_any_number_of_roles_and_older_steps(checked):
    @rolemesh.flow
    def late(job):
        rows = job.data.judge(job.rollout.generate(job.data.next()))
        job.trainer.train(job.data.judge(job.data.judge(rows, lag=1)))

    assert "top_p 0.7" in checked(late, {"top_p": 0.7}, {}, {})
