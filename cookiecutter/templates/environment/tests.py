"""Questions are answered, few of them are rewarded, and no task is in both splits."""

from rolemesh_agents import Task, ToolCall
from rolemesh_testing import EnvironmentConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(EnvironmentConformance):
    """The tests that every environment must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"most": 9}, {"held_out": 0})


OPTIONS = {{ cookiecutter.__class }}.Options(most=20, held_out=5)
ENVIRONMENT = {{ cookiecutter.__class }}(OPTIONS)


def test_a_question_is_answered_and_counts() -> None:
    episode, task = ENVIRONMENT.episode(), ENVIRONMENT.task("train", 3, seed=0)
    episode.reset(Task(3, task), seed=0)
    number = task["number"]
    assert episode.call(ToolCall("is_larger_than", {"limit": number})).content == "no"
    assert episode.call(ToolCall("is_larger_than", {"limit": number - 1})).content == "yes"
    assert "wrong arguments" in episode.call(ToolCall("is_larger_than", {"limit": "many"})).content
    assert episode.reply(f" {number}\n").done
    assert (episode.reward().value, episode.reward().success) == (0.9, True)


def test_a_wrong_number_has_no_reward() -> None:
    episode = ENVIRONMENT.episode()
    episode.reset(Task(0, ENVIRONMENT.task("eval", 0, seed=0), "eval"), seed=0)
    episode.reply("I do not know")
    assert (episode.reward().value, episode.reward().success) == (0.0, False)


def test_held_out_numbers_are_not_trained() -> None:
    assert ENVIRONMENT.numbers("eval") == [0, 5, 10, 15, 20]
    assert not {*ENVIRONMENT.numbers("eval")} & {*ENVIRONMENT.numbers("train")}
