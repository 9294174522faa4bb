"""Rewards by functions: TRL's signature, several functions, functions that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError, RolemeshError
from rolemesh_rewards.reward import Reward, RewardOptions

CODE = """
import os

def correct(completions, answer, **kwargs):
    return [float(text_of(c) == a) for c, a in zip(completions, answer, strict=True)]

def text_of(completion):
    return completion[0]["content"]

async def short(prompts, completions, log_metric, log_extra, trainer_state):
    log_metric("asked", float(prompts[0][-1]["content"] == "1 + 1?"))
    log_metric("at", trainer_state.global_step)
    log_extra("length", [len(text_of(c)) for c in completions])
    return [None if text_of(c) == "skip" else 1.0 for c in completions]

def hostile(completions, **kwargs):
    for completion in completions:
        text = text_of(completion)
        if text == "hang":
            while True:
                pass
        if text == "exit":
            os._exit(0)
        if text == "raise":
            raise ValueError("no number")
    return [1] * len(completions)

def evaluated(completions, **kwargs):
    return [float(eval(text_of(c)) == 2) for c in completions]

def none(completions, **kwargs):
    return [None] * len(completions)

def plain(prompts, completions, completion_ids, **kwargs):
    return [float(p + c == "1 + 1?2" and ids == [5, 6]) for p, c, ids in zip(prompts, completions, completion_ids)]

def sampled(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("said", [text_of(c) for c in completions])
    log_metric("at", trainer_state.global_step)
    return [float(p[0]["content"] == "1 + 1?" and list(i) == [5, 6]) for p, i in zip(prompts, completion_ids)]

def needy(completions, solution):
    return [0.0] * len(completions)

def wrong(completions, **kwargs):
    return [1.0]

def filtering(completions, **kwargs):
    return [1.0 for c in completions if text_of(c) != "skip"]

def texts(completions, **kwargs):
    return ["1"] * len(completions)

number = 3
"""


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"rewards_{tmp_path.name}.py".replace("-", "_")
    (tmp_path / name).write_text(CODE)
    made: list[Reward] = []

    def make(*functions: Any, **options: Any) -> Reward:
        given = [
            {"use": f"{name}:{each}"} if isinstance(each, str) else {**each, "use": f"{name}:{each['use']}"}
            for each in functions
        ]
        read = RewardOptions.model_validate({"functions": given, **options}, context={"base": str(tmp_path)})
        workload = Reward(read)
        workload.setup(RankContext())
        made.append(workload)
        return workload

    yield make
    for workload in made:
        workload.teardown()


def samples(*texts: str, **columns: Any) -> Batch:
    return Batch(
        {
            "messages": [[{"role": "user", "content": "1 + 1?"}]] * len(texts),
            "text": list(texts),
            "row": [{"answer": "2", "prompt": "x"}] * len(texts),
            "group": np.zeros(len(texts), np.int64),
            **columns,
        }
    )


def test_the_reward_is_the_weighted_sum_and_each_function_has_its_metric(role: Any) -> None:
    reward = role("correct", {"use": "short", "weight": 0.5, "name": "brief"})
    out = reward.score(samples("2", "3", "skip"))
    assert out["reward"].dtype == np.float32
    assert out["reward"].tolist() == [1.5, 0.5, 0]
    assert list(out["reward_extra"]) == [{"length": 1}, {"length": 1}, {"length": 4}]
    means = {name: total / count for name, (total, count) in reward.ctx.port.means.items()}
    assert means == pytest.approx(
        {"reward": 2 / 3, "reward_correct": 1 / 3, "reward_brief": 1, "asked": 1, "at": reward.ctx.step}
    )


def test_plain_texts_and_tokens_reach_a_function(role: Any) -> None:
    batch = Batch({"prompt": ["1 + 1?"], "text": ["2"], "completion_ids": [np.array([5, 6])]})
    assert role("plain").score(batch)["reward"].tolist() == [1]


TAKEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


@pytest.mark.parametrize("of", ["the data", "the rows"])
def test_no_column_takes_the_place_of_what_was_sampled(role: Any, of: str) -> None:
    others = {name: ["other"] for name in TAKEN}
    row = {"row": [dict.fromkeys(TAKEN, "other")]} if of == "the data" else others
    batch = samples("2", **{**row, "completion_ids": [np.array([5, 6])]})
    out = role("sampled").score(batch)
    assert (out["reward"].tolist(), out["reward_extra"]) == ([1], [{"said": "2"}])


def test_tokens_of_the_data_are_no_sampled_tokens(role: Any) -> None:
    with pytest.raises(OptionsError, match="needs 'completion_ids', which is no column"):
        role("plain").score(samples("2", row=[{"completion_ids": [5, 6]}]))


@pytest.mark.parametrize("text", ["hang", "exit", "raise"])
def test_a_row_that_breaks_a_function_alone_has_no_reward(role: Any, text: str) -> None:
    reward = role("hostile", "correct", timeout_s=0.3)
    out = reward.advantages(reward.score(samples("2", text, "3")))
    np.testing.assert_array_equal(out["reward"], [2, np.nan, 1])
    assert out["advantage"].tolist() == [1, 0, -1]


def test_the_code_of_an_answer_changes_no_other_reward_of_a_sealed_function(role: Any) -> None:
    change = "globals().update(float=lambda right: 1.0 - right)"
    reward = role("evaluated", sealed=True)
    assert reward.score(samples("1 + 1", change, "1 + 1", "3"))["reward"].tolist()[::2] == [1, 1]
    assert reward.score(samples("1 + 1", "3"))["reward"].tolist() == [1, 0]


def test_a_row_to_which_no_function_applies_has_no_reward(role: Any) -> None:
    assert np.isnan(role("none").score(samples("2"))["reward"]).all()


def test_a_function_that_fails_for_each_row_ends_the_job(role: Any) -> None:
    with pytest.raises(RolemeshError, match=r"fails for each row: .*no number"):
        role("hostile").score(samples("raise", "raise"))


def test_a_function_that_returns_one_reward_for_all_rows_ends_the_job(role: Any) -> None:
    reward = role("wrong")
    assert reward.score(samples("1"))["reward"].tolist() == [1]
    with pytest.raises(RolemeshError, match="single rows only: it returned 1 rewards for 2 rows"):
        reward.score(samples("1", "2"))


def test_a_row_with_which_a_function_returns_too_few_rewards_alone_has_none(role: Any) -> None:
    np.testing.assert_array_equal(role("filtering").score(samples("1", "skip", "2"))["reward"], [1, np.nan, 1])


def test_a_text_is_no_reward(role: Any) -> None:
    with pytest.raises(RolemeshError, match="'1' is no number"):
        role("texts").score(samples("1", "2"))


def test_a_missing_column_is_named_with_those_that_exist(role: Any) -> None:
    with pytest.raises(OptionsError, match=r"needs 'solution'.*\n.*answer, group"):
        role("needy").score(samples("2"))


def test_no_rows_have_no_rewards(role: Any) -> None:
    assert role("short").score(samples())["reward"].shape == (0,)


def test_an_evaluation_shows_answers_and_changes_no_row(role: Any) -> None:
    reward = role("correct")
    reward.evaluate(samples("2", "3", question=["1 + 1?"] * 2))
    assert reward.ctx.port.means["eval_reward"] == [1, 2]
    assert [each["reward"] for each in reward.ctx.port.records["eval_answers"]] == [1, 0]


@pytest.mark.parametrize(
    ("functions", "words"),
    [([], "at least 1"), (["correct", "correct"], "two functions are called"), (["missing"], "has no 'missing'")],
)
def test_options_that_name_no_functions_are_refused(role: Any, functions: list[str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        role(*functions)


def test_a_number_in_place_of_a_function_is_refused(role: Any) -> None:
    with pytest.raises(OptionsError, match="is a int"):
        role("number")


def test_rows_left_out_are_counted_and_told_once(role: Any) -> None:
    reward = role("correct")
    for _ in range(2):
        reward.advantages(Batch({"reward": np.float32([1, 0, np.nan]), "group": np.zeros(3, np.int64)}))
    assert reward.ctx.port.sums["rewards_left_out"] == 2
    assert list(reward.ctx.port.records.values()) == ["row 2 of group 0 is left out: its reward is nan"]


def test_samples_of_different_prompts_in_one_group_are_refused(role: Any) -> None:
    rows = {"reward": np.float32([1, 0]), "group": np.zeros(2, np.int64), "question": ["a", "b"]}
    with pytest.raises(RolemeshError, match="group 0 has samples of different prompts, in rows 0 and 1"):
        role("correct").advantages(Batch(rows))
