"""The reward of an answer, and its advantage in its group."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError
from rolemesh_reasoning_gym import ReasoningGymReward, RewardOptions, verifiers
from rolemesh_reasoning_gym.tasks import make_dataset, verified


def reward(rank: int = 0, **options: Any) -> ReasoningGymReward:
    workload = ReasoningGymReward(RewardOptions(**options))
    workload.setup(RankContext(rank=rank))
    return workload


def samples(*texts: str) -> Batch:
    entry = make_dataset("word_sequence_reversal", {"min_words": 2, "max_words": 2}, seed=1, size=1)[0]
    return Batch({"text": [t.format(entry["answer"]) for t in texts], "entry": [entry] * len(texts)})


def test_the_verifiers_partial_credit_is_the_reward() -> None:
    out = reward().score(samples("{}", " {}\n", "It is {}, surely", "no idea"))
    rewards = out["reward"]
    assert rewards.dtype == np.float32
    assert rewards[[0, 1, 3]].tolist() == [1, 1, 0]
    assert 0 < rewards[2] < 1


def test_exact_gives_nothing_for_what_is_not_fully_right() -> None:
    assert reward(exact=True).score(samples("{}", "It is {}, surely"))["reward"].tolist() == [1, 0]


def test_without_strip_white_space_counts() -> None:
    assert reward(strip=False, exact=True).score(samples("{}", "{}\n"))["reward"].tolist() == [1, 0]


def test_extract_verifies_what_stands_in_the_last_tag() -> None:
    out = reward(extract="answer").score(samples("<answer>x</answer> <answer> {} </answer>", "{}"))
    assert out["reward"].tolist() == [1, 0]


def test_a_named_task_overrides_the_rows_own() -> None:
    entry = {"question": "?", "answer": "3", "metadata": {"source_dataset": "word_sequence_reversal"}}
    out = reward(task="chain_sum", exact=True).score(Batch({"text": ["3"], "entry": [entry]}))
    assert out["reward"].tolist() == [1]


def test_the_mean_reward_is_reported() -> None:
    workload = reward(exact=True)
    workload.score(samples("{}", "{}", "{}", "wrong"))
    total, count = workload.ctx.port.means["reward"]
    assert total / count == 0.75


def test_no_rows_have_no_reward_and_no_advantage() -> None:
    workload = reward()
    out = workload.advantages(workload.score(samples("{}")[0:0]) | {"group": np.zeros(0, np.int64)})
    assert out.rows == 0
    assert out["advantage"].dtype == np.float32
    assert workload.ctx.port.means == {}


def test_evaluation_reports_accuracy_and_a_handful_of_answers() -> None:
    workload = reward()
    workload.evaluate(samples("{}", "It is {}", *["no"] * 6))
    total, count = workload.ctx.port.means["eval_accuracy"]
    assert total / count == 1 / 8
    answers = workload.ctx.port.records["eval_answers"]
    assert len(answers) == 5
    assert [a["correct"] for a in answers] == [True, False, False, False, False]
    assert set(answers[0]) == {"question", "answer", "text", "correct"}


def test_only_the_first_rank_records_answers() -> None:
    workload = reward(rank=1)
    workload.evaluate(samples("{}"))
    assert workload.ctx.port.records == {}
    assert workload.ctx.port.means["eval_accuracy"] == [1, 1]


def test_a_config_without_its_task_is_refused() -> None:
    with pytest.raises(ValidationError, match="config is given without the task"):
        RewardOptions(config={"min_words": 2})


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(OptionsError, match="did you mean 'chain_sum'"):
        ReasoningGymReward.check(RewardOptions(task="chain_sums"), world_size=1)


@pytest.mark.parametrize(
    ("task", "answer"),
    [("prime_factorization", "?"), ("boxnet", "[1]"), ("game_of_life", "{}"), ("coin_flip", "1e999")],
)
def test_an_answer_that_a_verifier_cannot_parse_is_wrong(task, answer):
    dataset = make_dataset(task, {}, seed=0, size=1)
    assert verified(dataset, dataset[0], answer) == 0.0


def test_a_verifier_that_fails_on_the_right_answer_is_an_error():
    class Broken:
        def score_answer(self, answer, entry):
            raise ZeroDivisionError(answer)

    with pytest.raises(ZeroDivisionError, match="right"):
        verified(Broken(), {"answer": "right"}, "wrong")


@pytest.mark.parametrize("parts", [[], [{"name": "chain_sum", "weigth": 2.0}], ["chain_sum"], [{"weight": 2.0}]])
def test_settings_that_a_config_class_cannot_check_are_refused(parts):
    with pytest.raises(OptionsError, match="the task 'composite' refuses this config"):
        ReasoningGymReward.check(RewardOptions(task="composite", config={"datasets": parts}), 1)


def hostile(task: str, *texts: str) -> Batch:
    entry = make_dataset(task, {}, seed=0, size=1)[0]
    return Batch({"text": [t.format(entry["answer"]) for t in texts], "entry": [entry] * len(texts)})


def test_an_answer_that_its_verifier_cannot_judge_is_wrong_and_costs_no_other_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workload = reward(exact=True)
    rows = hostile("spiral_matrix", "{}", "exit()", "[open('pwned', 'w')]", "__import__('os')._exit(0)", "{}")
    assert workload.score(rows)["reward"].tolist() == [1, 0, 0, 0, 1]
    assert not list(tmp_path.iterdir())
    workload.teardown()


def test_a_string_of_digits_that_hides_code_changes_no_other_judgement():
    code = """eval('__import__("sympy").__dict__.update(simplify=lambda *_, **__: 0)')"""
    text = "'" + "".join(f"\\{ord(each):03o}" for each in code) + "'"
    workload = reward(exact=True)
    assert workload.score(hostile("simple_integration", text, "7", "7"))["reward"].tolist()[1:] == [0, 0]
    workload.teardown()


def workers(task: str, text: str) -> set[Any]:
    """Return the workers that are left after each of two judgements."""
    workload, left = reward(), set()
    for _ in range(2):
        workload.score(hostile(task, text))
        left |= {*workload.verifiers._judges._idle}
    workload.teardown()
    return left


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("simple_integration", "x**2/3 - 1.5*sin(x)*exp(-2*x) + C"),
        ("polynomial_multiplication", "unknown"),
        ("polynomial_multiplication", "alpha*beta + 5! / other(words)"),
        ("simple_integration", "unknown"),
        ("simple_integration", "x*y*z*beta + sin(a)*sqrt(k)"),
        ("puzzle24", "sqrt('x + unknown')"),
        ("bitwise_arithmetic", "0x1aF3"),
        ("string_insertion", "AABCDE"),
        ("string_insertion", "['A', 'B', 'C', 'D', 'E']"),
        ("spiral_matrix", "[[1, 2], [3, 4]]"),
        ("number_sorting", "['-1.5', '20']"),
        ("spiral_matrix", "unknown"),
        ("countdown", "(7 + .5e1) * 3"),
    ],
)
def test_an_answer_that_only_computes_spends_no_worker(task: str, text: str) -> None:
    assert len(workers(task, text)) == 1


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("polynomial_multiplication", "x.C"),
        ("polynomial_multiplication", "S('x.C')"),
        ("polynomial_multiplication", "N('\\170\\56C')"),
        ("polynomial_multiplication", "Lambda(x, x)"),
        ("spiral_matrix", "[n for n in [1]]"),
        ("spiral_matrix", "(n := 1)"),
        ("spiral_matrix", "[1, 2][0]"),
        ("spiral_matrix", "answer"),
        ("spiral_matrix", "len([1])"),
    ],
)
def test_an_answer_that_may_do_more_spends_its_worker(task: str, text: str) -> None:
    assert not workers(task, text)


def test_a_judgement_that_fails_is_counted_and_told(monkeypatch):
    monkeypatch.setattr(verifiers, "make_dataset", lambda *_, **__: Dying())
    workload = reward()
    entry = {"question": "?", "answer": "2", "metadata": {"source_dataset": "x"}}
    broken = {**entry, "answer": "die 3"}
    batch = Batch({"text": ["2", "die 5", "die 6", "die 6"], "entry": [entry, entry, entry, broken]})
    found = workload.score(batch | {"group": np.int64([0, 0, 0, 1])})
    np.testing.assert_array_equal(found["reward"], np.float32([1, 0, 0, np.nan]))
    assert workload.ctx.port.sums["answers_unjudged"] == 3
    assert workload.ctx.port.means["reward"] == [1, 3]
    told = "{}: its judgement has failed (it has ended its process with the exit status {})"
    wrong, broken = "an answer counts as wrong", "an answer has no reward, since that of the right answer fails, too"
    texts = [told.format(wrong, 5), told.format(wrong, 6), told.format(broken, 6)]
    assert [*workload.ctx.port.records.values()] == texts
    assert workload.advantages(found)["advantage"][3] == 0
    workload.teardown()


class Dying:
    """A verifier that ends its process for some answers, as one that evaluates them may."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"answer": "1"}

    def score_answer(self, answer: str, entry: Any) -> float:
        if answer.startswith("die"):
            os._exit(int(answer[3:]))
        return float(answer == entry["answer"])
