"""The environment `openenv`. These tests need the package openenv, which must not be in the common environment."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Observation, Start, Task, ToolCall
from rolemesh_openenv import OpenEnvEnvironment
from rolemesh_openenv.episode import reward_of
from rolemesh_testing import EnvironmentConformance

HERE = Path(__file__).parent
needs_openenv = pytest.mark.skipif(find_spec("openenv") is None, reason="needs openenv; the soak installs it apart")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def made(**options: Any) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(OpenEnvEnvironment.Options.model_validate(options))


def begun(environment: OpenEnvEnvironment) -> None:
    """Begin an episode, and close it."""
    task, episode = Task(0, environment.task("train", 0, seed=0)), environment.episode()
    try:
        episode.reset(task, seed=0)
    finally:
        episode.close()


@needs_openenv
class TestTools(EnvironmentConformance):
    plugin = "openenv"
    options = {"environment": "echoing:Tools", "eval_size": 3}
    bad_options = ({"environment": "echoing"}, {"rewards": "mean"}, {"text": "word"})
    preload = ("openenv.core.env_server",)


@needs_openenv
class TestSums(EnvironmentConformance):
    plugin = "openenv"
    options = {"environment": "echoing:Sums", "action": "echoing:Add", "success": 1.0}
    preload = ("openenv.core.env_server",)

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        return ToolCall("step", {"number": 1 + len(answers)}) if len(answers) < 3 else None


@needs_openenv
def test_steps_are_rewarded_as_the_environment_itself_does() -> None:
    import echoing  # type: ignore[import-not-found]

    judge, environment = echoing.Sums(), made(environment="echoing:Sums", action="echoing:Add", success=1.0)
    task, episode = Task(3, environment.task("train", 3, seed=0)), environment.episode()
    start = episode.reset(task, seed=9)
    judge.reset(seed=task.data["seed"])
    assert start.messages[0]["content"] == f'{{"sum": {judge.sum}}}'
    total = 0.0
    for number in (-5, 10, 45 - judge.sum):
        found = judge.step(echoing.Add(number=number))
        total += found.reward
        answer = episode.call(ToolCall("step", {"number": number}))
        assert answer == Observation(f'{{"sum": {found.sum}}}', found.done)
    assert episode.reward().value == total
    assert "wrong arguments" in episode.call(ToolCall("step", {"number": "many"})).content
    episode.close()


@needs_openenv
def test_texts_are_steps_and_listed_tasks_are_the_tasks() -> None:
    environment = made(environment="echoing:Words", action="echoing:Say", text="word", rewards="last", prompt="Say it.")
    assert (environment.size("train"), environment.size("eval")) == (5, 2)
    assert environment.task("eval", 1, seed=3) == {"split": "test", "index": 1}
    episode = environment.episode()
    assert episode.reset(Task(0, environment.task("train", 0, seed=3)), seed=3) == Start(
        [{"role": "user", "content": "Say it."}]
    )
    assert episode.reply("a word").messages == [{"role": "user", "content": "{}"}]
    assert not episode.reply("a word that is too long").done
    assert episode.reply("end").done
    assert episode.reward().value == 3.0
    episode.close()
    environment.close()


@needs_openenv
def test_tools_of_an_mcp_environment_are_tools_of_the_model() -> None:
    environment = made(environment="echoing:Tools")
    episode = environment.episode()
    start = episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
    assert [(tool.name, tool.description) for tool in start.tools] == [("count", "Count.")]
    assert start.tools[0].parameters["properties"]["by"]["type"] == "integer"
    assert episode.call(ToolCall("count", {"by": 2})).content == "2"
    assert "error" in episode.call(ToolCall("count", {"by": "two"})).content
    episode.close()


@needs_openenv
def test_async_methods_run_in_one_loop_and_get_the_arguments_that_they_take() -> None:
    environment = made(environment="echoing:Walks", action="echoing:Walk", step_errors="answer")
    episode = environment.episode()
    start = episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
    assert start.messages[0]["content"] == '{"place": 0}'
    assert set(start.tools[0].parameters["$defs"]) == {"Leg", "Way"}

    def step(*legs: Any) -> Observation:
        return episode.call(ToolCall("step", {"legs": list(legs)}))

    assert step({"way": "right", "length": 3}, {"way": "left"}) == Observation('{"place": 2}')
    assert "legs.0.way: Input should be 'left' or 'right'" in step({"way": "up"}).content
    assert step({"way": "left", "length": 9}) == Observation("error: ValueError: a leg has at most 5 steps")
    assert step({"way": "right", "length": 4}).done
    assert episode.reward().value == 8.0
    episode.close()


@needs_openenv
def test_a_step_that_raises_is_a_failure_by_default() -> None:
    episode = made(environment="echoing:Walks", action="echoing:Walk").episode()
    episode.reset(Task(0, {"seed": 1}), seed=0)
    with pytest.raises(AgentError, match="has raised ValueError: a leg") as raised:
        episode.call(ToolCall("step", {"legs": [{"way": "left", "length": 9}]}))
    episode.close()
    assert "step_errors: answer" in str(raised.value.remedy)


@needs_openenv
@pytest.mark.parametrize(
    ("options", "why", "remedy"),
    [
        ({"environment": "echoing:Sums"}, "has no tools of its own", "action: module:Class"),
        ({"environment": "echoing:Walks", "action": "echoing:Walk", "reset": {"a": 1}}, "not take a", "takes nothing"),
        ({"environment": "echoing:Listed", "action": "echoing:Walk"}, "no split 'train'", "it has easy, hard"),
        (
            {"environment": "echoing:Listed", "action": "echoing:Walk", "splits": ["easy", "hard"]},
            "take index, split",
            "task API",
        ),
        ({"environment": "echoing:Sums", "action": "echoing:Add", "text": "word"}, "no field 'word'", "number"),
        ({"environment": "echoing:Walks", "action": "echoing:Walk", "text": "note"}, "also needs legs", "tool `step`"),
        (
            {"environment": "echoing:Sums", "action": "echoing:Add", "arguments": {"a": 1}},
            "cannot be made",
            "arguments",
        ),
    ],
)
def test_an_unsuitable_class_is_refused_before_the_first_turn(options: dict[str, Any], why: str, remedy: str) -> None:
    environment = made(**options)
    with pytest.raises(OptionsError, match=why) as raised:
        begun(environment)
    environment.close()
    assert remedy in str(raised.value.remedy)


def test_without_the_package_the_error_names_the_roles_environment() -> None:
    with pytest.raises(OptionsError, match="cannot be imported") as raised:
        made(environment="no_such_package:Environment").episode()
    assert "runtime_env" in str(raised.value.remedy)


def test_an_import_that_fails_within_the_package_names_what_is_missing() -> None:
    with pytest.raises(OptionsError, match="No module named 'no_such_models'") as raised:
        made(environment="unimportable:Environment").episode()
    assert "PYTHONPATH" in str(raised.value.remedy)


def test_a_class_of_actions_that_cannot_be_imported_is_refused_when_tasks_are_dealt_out() -> None:
    with pytest.raises(OptionsError, match="hostile:Action cannot be imported") as raised:
        made(environment="hostile:Hangs", action="hostile:Action").size("train")
    assert raised.value.where == "action"


def test_a_constructor_without_end_is_a_failure_that_says_where_it_stands() -> None:
    with pytest.raises(OptionsError, match=r"within 0.2 s: it still runs Hangs.__init__ \(.*hostile.py:\d+") as raised:
        made(environment="hostile:Hangs", load_s=0.2).size("train")
    assert "`load_s`" in str(raised.value.remedy)


def test_an_exit_in_the_constructor_is_a_failure() -> None:
    with pytest.raises(OptionsError, match=r"cannot be made: RuntimeError: it raised SystemExit\(3\)"):
        made(environment="hostile:Exits").size("train")


@pytest.mark.parametrize("given", [math.nan, -math.inf, "1.0", "many", np.array([0.5, 1.0]), [1.0], 1j])
def test_a_reward_that_is_no_finite_number_is_a_failure(given: Any) -> None:
    with pytest.raises(AgentError, match="has given the reward"):
        reward_of(given)


@pytest.mark.parametrize(("given", "expected"), [(None, 0.0), (True, 1.0), (np.float32(0.5), 0.5), (np.array(2), 2.0)])
def test_a_reward_may_be_any_number(given: Any, expected: float) -> None:
    assert reward_of(given) == expected


@pytest.mark.soak
def test_these_tests_pass_where_openenv_is_installed(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "own"), "openenv==0.10.0"]
    subprocess.run(pip, check=True)
    path = os.pathsep.join([str(tmp_path / "own"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300", str(HERE)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "needs openenv" not in done.stdout, done.stdout[-3000:]
