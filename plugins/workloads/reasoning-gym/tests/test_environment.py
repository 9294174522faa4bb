"""The environment: attempts, answers to them, and rewards, with reasoning-gym's own verifier as the judge."""

from __future__ import annotations

from typing import Any

import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Episode, Outcome, Task
from rolemesh_reasoning_gym import ReasoningGymEnvironment

REVERSAL = "word_sequence_reversal"
TASKS = (REVERSAL, "basic_arithmetic", "coin_flip", "countdown", "gcd", "letter_counting", "maze", "rotate_matrix")


def made(**options: Any) -> ReasoningGymEnvironment:
    given = {"task": REVERSAL, "eval_size": 4, **options}
    return ReasoningGymEnvironment(ReasoningGymEnvironment.Options.model_validate(given))


def begun(environment: ReasoningGymEnvironment, number: int = 0) -> tuple[Episode, dict[str, Any]]:
    """An episode of a training task, and reasoning-gym's dict of its item."""
    task = Task(number, environment.task("train", number, seed=0))
    episode = environment.episode()
    episode.reset(task, seed=0)
    return episode, environment.entry(task.data["item"])


@pytest.mark.parametrize("name", TASKS)
def test_rewards_are_the_scores_of_the_verifier_for_the_same_answers(name: str) -> None:
    from reasoning_gym import create_dataset

    environment = made(task=name)
    for number in range(3):
        episode, entry = begun(environment, number)
        answers = ["no idea", f"{entry['answer']} or so", str(entry["answer"])]
        judge = create_dataset(name, seed=number, size=1)
        for answer in answers:
            done = episode.reply(answer).done
            score = judge.score_answer(answer=answer, entry=entry)
            assert episode.reward().value == score
            assert episode.reward().success == (score >= 1)
            if done:
                break
        assert episode.reward().value == 1.0


def test_a_composite_of_tasks_asks_and_verifies_as_reasoning_gym_does() -> None:
    from reasoning_gym import create_dataset
    from reasoning_gym.composite import DatasetSpec

    parts: list[dict[str, Any]] = [{"name": "gcd", "config": {"max_value": 50}}, {"name": "coin_flip", "weight": 3}]
    specs = [DatasetSpec("gcd", 1.0, {"max_value": 50}), DatasetSpec("coin_flip", 3.0, {})]
    environment = made(task="composite", config={"datasets": parts})
    for number in range(4):
        episode, entry = begun(environment, number)
        item = environment.task("train", number, seed=0)["item"]
        judge = create_dataset("composite", datasets=specs, seed=item, size=1)
        assert entry["question"] == judge[0]["question"]
        assert episode.reply(entry["answer"]).done
        assert episode.reward().value == judge.score_answer(entry["answer"], judge[0]) == 1.0
    with pytest.raises(OptionsError, match="no setting 'max_valu'"):
        made(task="composite", config={"datasets": [{"name": "gcd", "config": {"max_valu": 50}}]})


def test_the_level_of_a_curriculum_rises_with_the_number_of_the_task() -> None:
    from reasoning_gym.factory import create_curriculum, create_dataset

    environment, again = (made(task="gcd", curriculum={"last": 2, "every": 2}) for _ in range(2))
    for split, number, level in [("train", 0, 0), ("train", 3, 1), ("train", 4, 2), ("train", 90, 2), ("eval", 0, 2)]:
        task = Task(number, environment.task(split, number, seed=0), split)  # type: ignore[arg-type]
        curriculum = create_curriculum("gcd")
        curriculum.set_global_level(level)
        config = curriculum.generate_configuration()
        config.seed, config.size = task.data["item"], 1
        own = create_dataset("gcd", **vars(config))[0]
        assert task.data["question"] == own["question"]
        assert Task(number, again.task(split, number, seed=0), split) == task  # type: ignore[arg-type]
        episode = environment.episode()
        episode.reset(task, seed=0)
        episode.reply("?")
        later = again.episode()
        later.restore(episode.snapshot() or b"")
        assert later.reply(own["answer"]) == Outcome()
        assert later.reward().success


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"task": "acre"}, "no curriculum"),
        ({"task": "gcd", "curriculum": {"last": 9}}, "the levels 0 to 9 are not"),
        ({"task": "gcd", "curriculum": {"first": 2, "last": 1}}, "the levels 2 to 1 are not"),
        ({"task": "survo"}, "level 2 of the task 'survo' is refused by reasoning-gym: max_empty"),
    ],
)
def test_levels_that_cannot_be_are_an_error(options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionsError, match=why):
        made(**{"curriculum": {}, **options})


def test_a_wrong_answer_is_told_until_the_attempts_are_used_up() -> None:
    episode, _ = begun(made(attempts=3, feedback="{score}: wrong, {left} left {{"))
    told = [episode.reply("?") for _ in range(3)]
    assert [each.done for each in told] == [False, False, True]
    contents = [[message["content"] for message in each.messages] for each in told]
    assert contents == [["0: wrong, 2 left {{"], ["0: wrong, 1 left {{"], []]
    assert episode.reward().parts == {"score": 0.0, "attempts": 3, "unjudged": 0}


def test_a_right_answer_ends_the_episode_and_later_attempts_are_worth_less() -> None:
    episode, entry = begun(made(attempts=3, discount=0.5))
    assert not episode.reply("?").done
    assert episode.reply(f"  {entry['answer']}\n") == Outcome()
    assert (episode.reward().value, episode.reward().success) == (0.5, True)


def test_only_the_text_in_the_tag_is_verified() -> None:
    episode, entry = begun(made(extract="answer"))
    assert not episode.reply(str(entry["answer"])).done
    assert episode.reply(f"I think <answer>{entry['answer']}</answer>").done
    assert episode.reward().success


def test_the_system_prompt_comes_first() -> None:
    environment = made(system="Think.")
    start = environment.episode().reset(Task(3, environment.task("eval", 3, seed=1), "eval"), seed=0)
    assert [message["role"] for message in start.messages] == ["system", "user"]


def test_no_training_task_has_a_held_out_question() -> None:
    """This task has 8 questions, so that half of all numbers collide."""
    environment = made(task="coin_flip", config={"min_trials": 3, "max_trials": 3}, eval_size=4)
    held = {environment.task("eval", n, seed=2)["question"] for n in range(4)}
    assert len(held) == 4
    assert not held & {environment.task("train", n, seed=2)["question"] for n in range(40)}


def test_a_task_with_too_few_questions_is_an_error() -> None:
    with pytest.raises(OptionsError, match="too few different questions"):
        made(task="coin_flip", config={"min_trials": 1, "max_trials": 1}, eval_size=40).task("eval", 0, seed=0)


def test_another_question_than_that_of_the_task_is_no_mistake_of_the_model() -> None:
    environment = made()
    task = Task(0, environment.task("train", 0, seed=0))
    with pytest.raises(AgentError, match="another question here"):
        environment.episode().reset(Task(0, {**task.data, "question": "?"}), seed=0)
