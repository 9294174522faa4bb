"""The environment `verifiers`. Most tests need the package, which must not be in the common environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Start, Task, ToolCall
from rolemesh_testing import EnvironmentConformance
from rolemesh_verifiers import VerifiersEnvironment
from rolemesh_verifiers.judging import judged
from rolemesh_verifiers.messages import added, asked, completion, spoken

HERE = Path(__file__).parent
needs_verifiers = pytest.mark.skipif(
    find_spec("verifiers") is None, reason="needs verifiers; the soak installs it apart"
)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def made(taskset: str, **options: Any) -> VerifiersEnvironment:
    return VerifiersEnvironment(VerifiersEnvironment.Options.model_validate({"taskset": taskset, **options}))


@pytest.fixture
def play() -> Iterator[Callable[..., Any]]:
    """``play(environment, number, talk)`` runs ``talk(episode, start)`` with an episode of this training task."""
    used = []

    def run(
        environment: VerifiersEnvironment, number: int, talk: Callable[[Any, Start], Coroutine[Any, Any, Any]]
    ) -> Any:
        used.append(environment)

        async def whole() -> Any:
            episode = environment.episode()
            try:
                return await talk(episode, await episode.reset(environment.task("train", number, seed=0), seed=0))  # type: ignore[misc]
            finally:
                await asyncio.to_thread(episode.close)

        return asyncio.run(whole())

    yield run
    for environment in used:
        environment.close()


# ------------------------------------------------------------------------------------------- without the package


def test_a_request_that_continues_the_conversation_adds_its_new_messages() -> None:
    head = [{"role": "user", "content": [{"type": "text", "text": "Add."}]}]
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    first = asked({"messages": head, "tools": tools}, once=["add"])
    assert (first.tools[0].description, first.tools[0].repeatable) == ("add", False)
    turn = spoken("so", [ToolCall("add", {"a": 1}, "other")], number=4)
    told = completion(turn)["choices"][0]["message"]
    answer = {"role": "tool", "tool_call_id": "call-4-0", "name": "add", "content": None}
    now = asked({"messages": [*head, {**told, "reasoning": None}, answer], "tools": tools}, once=["add"])
    assert added(first, turn, now) == [{"role": "tool", "content": "", "tool_call_id": "call-4-0"}]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (["user other", "assistant yes"], "changed earlier messages"),
        (["user hello", "assistant no"], "changed earlier messages"),
        (["user hello"], "changed earlier messages"),
    ],
)
def test_a_request_that_changes_the_conversation_is_refused(messages: list[str], why: str) -> None:
    parsed = [dict(zip(("role", "content"), each.split(), strict=True)) for each in messages]
    first = asked({"messages": [{"role": "user", "content": "hello"}]}, once=[])
    with pytest.raises(AgentError, match=why) as raised:
        added(first, spoken("yes", [], 0), asked({"messages": parsed}, once=[]))
    assert "`process`" in str(raised.value.remedy)


def test_images_are_refused() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(AgentError, match="image_url, and rolemesh knows text only"):
        asked({"messages": [{"role": "user", "content": content}]}, once=[])


def trace(**about: Any) -> Any:
    reward = SimpleNamespace(value=0.0)
    return SimpleNamespace(
        **{"errors": [], "is_timeout": False, "rewards": {"r": reward}, "metrics": {}, "reward": 0.0, **about}
    )


@pytest.mark.parametrize(
    ("episode", "own", "why"),
    [
        ({"ok": False, "errors": [SimpleNamespace(type="EnvError", message="broken")]}, {}, "EnvError: broken"),
        ({"ok": False}, {"errors": [SimpleNamespace(type="TaskError", message="bad")]}, "TaskError: bad"),
        ({}, {"is_timeout": True, "stop_condition": "scoring_timeout"}, "scoring_timeout"),
        ({}, {"rewards": {"r": None}}, "has not computed the reward r"),
        ({}, {"rewards": {}}, "has no reward"),
    ],
)
def test_a_failure_is_an_error_and_no_reward(episode: dict[str, Any], own: dict[str, Any], why: str) -> None:
    found = trace(**own)
    with pytest.raises(AgentError, match=why):
        judged(SimpleNamespace(**{"ok": True, "errors": [], "traces": [found], **episode}), found, None)


def test_without_the_package_the_error_names_the_roles_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    environment = made("gsm8k")
    with pytest.raises(OptionsError, match="verifiers cannot be imported") as raised:
        environment.size("train")
    environment.close()
    assert "runtime_env" in str(raised.value.remedy)


# ---------------------------------------------------------------------------------------------- with the package


@needs_verifiers
class TestTalks(EnvironmentConformance):
    plugin = "verifiers"
    options = {"taskset": "trying_talks", "success": 1.0, "most": 200}
    bad_options = ({"taskset": ""}, {"taskset": "trying_talks", "most": 0}, {"taskset": "t", "unknown": 1})
    preload = ("verifiers.v1",)


@needs_verifiers
class TestTools(EnvironmentConformance):
    plugin = "verifiers"
    options = {"taskset": "trying_tools", "eval_size": 2}
    preload = ("verifiers.v1",)

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        return (
            ToolCall("counter_add", {"number": 1 + len(answers)})
            if len(answers) < 2
            else "done"
            if len(answers) < 3
            else None
        )


@needs_verifiers
def test_a_turn_with_text_and_two_calls_reaches_the_environment_whole(play: Callable[..., Any]) -> None:
    calls = [ToolCall("counter_add", {"number": 3}, "a"), ToolCall("counter_add", {"number": 8}, "b")]

    async def talk(episode: Any, start: Start) -> Any:
        assert [tool.name for tool in start.tools] == ["counter_add", "counter_fail"]
        episode.hear("I think so", calls)
        answers = [(await episode.call(call)).content for call in calls]
        wrong = [
            ToolCall("counter_add", {"number": "x"}),
            ToolCall("nothing", {}),
            ToolCall("counter_fail", {"text": "oh"}),
        ]
        answers += [(await episode.call(call)).content for call in wrong]
        assert (await episode.reply("2")).done
        return answers, await episode.reward()

    answers, reward = play(made("trying_tools", eval_size=2), 0, talk)
    assert answers[:2] == ["5", "hidden"]  # the task's interceptor has replaced 13
    assert [text in answer for text, answer in zip(("number", "unknown tool", "oh"), answers[2:], strict=True)] == [
        True
    ] * 3
    assert (reward.value, reward.parts) == (1.5, {"sum": 11.0, "right": 1.0, "thoughts": 0.5})


@needs_verifiers
def test_a_stop_of_the_task_ends_the_conversation(play: Callable[..., Any]) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        return await episode.call(ToolCall("counter_add", {"number": 100})), await episode.reward()

    found, reward = play(made("trying_tools", eval_size=2), 0, talk)
    assert found.done
    assert reward.parts["sum"] == 100


@needs_verifiers
def test_a_user_of_the_environment_speaks_until_it_is_content(play: Callable[..., Any]) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        assert [message["content"] for message in start.messages] == ["Be short.", "Say 65."]
        again = await episode.reply("7")
        assert again.messages == [{"role": "user", "content": "7 is wrong."}]
        assert (await episode.reply("65")).done
        return await episode.reward()

    reward = play(made("trying_talks"), 1, talk)
    assert (reward.value, reward.parts["turns"]) == (1.0, 2.0)


@needs_verifiers
def test_held_out_tasks_may_have_settings_of_their_own() -> None:
    environment = made("trying_talks", held_out={"split": "test"}, eval_size=3, most=50)
    assert (environment.size("train"), environment.size("eval")) == (50, 3)
    assert environment.task("train", 0, 0).data["hash"] != environment.task("eval", 0, 0).data["hash"]
    environment.close()


@needs_verifiers
@pytest.mark.parametrize(
    ("config", "number", "reply", "why"),
    [({}, 0, "raise", "the judge is broken"), ({"runs": 2}, 0, "no", "begins another one")],
)
def test_an_episode_without_a_judgement_fails(
    play: Callable[..., Any], config: dict[str, Any], number: int, reply: str, why: str
) -> None:
    async def talk(episode: Any, start: Start) -> Any:
        await episode.reply(reply)
        return await episode.reward()

    with pytest.raises(AgentError, match=why):
        play(made("trying_talks", config=config), number, talk)


@needs_verifiers
def test_another_task_than_the_one_that_was_dealt_out_is_refused() -> None:
    environment = made("trying_talks")
    with pytest.raises(AgentError, match="differs from the one"):
        asyncio.run(environment.episode().reset(Task(0, {"index": 0, "hash": "other"}), 0))  # type: ignore[arg-type]
    environment.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_these_tests_pass_where_verifiers_is_installed(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "own"), "verifiers==0.4.0"]
    subprocess.run(pip, check=True, timeout=900)
    path = os.pathsep.join([str(tmp_path / "own"), str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", __file__]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=2600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout.splitlines()[-1] or find_spec("verifiers"), done.stdout[-3000:]
