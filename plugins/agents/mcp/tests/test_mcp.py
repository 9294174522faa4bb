"""The environment `mcp`: the kit, rewards, and servers that hang, die and leave processes behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from tests.waiting import HANG_S, until

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Episode, Observation, Reward, Start, Task, ToolCall
from rolemesh_mcp import McpEnvironment
from rolemesh_testing import EnvironmentConformance

SERVER = str(Path(__file__).with_name("counting_server.py"))
TASKS = [{"prompt": f"Get {n}.", "judge": {"number": n}, "answer": f"{n}"} for n in range(4)]


def write(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in TASKS))
    (folder / "held.jsonl").write_text(f"{json.dumps(TASKS[3] | {'prompt': 'Get three.'})}\n")


class TestMcp(EnvironmentConformance):
    plugin = "mcp"
    preload = ("mcp",)

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        write(tmp_path)
        type(self).options = {
            "command": [sys.executable, SERVER],
            "tasks": str(tmp_path / "tasks.jsonl"),
            "held_out": str(tmp_path / "held.jsonl"),
            "env": {"BOX": str(tmp_path / "box")},
            "judge": "verdict",
        }
        return tmp_path

    bad_options = ({"command": []}, {"tasks": "nowhere.jsonl"}, {"call_s": 0}, {"server_per": "job"})

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        letters = task.number == 0  # its episode cannot be restored after the letter
        last = ToolCall("send", {"text": "hello"}) if letters else ToolCall("task", {})
        return [ToolCall("add", {"number": task.number}), ToolCall("add", {"number": 1}), last, "done"][len(answers)]

    def effects(self, base: Path) -> int:
        box = base / "box"
        return len(box.read_text().splitlines()) if box.exists() else 0


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., McpEnvironment]]:
    write(tmp_path)
    environments = []

    def make(*words: str, **options: Any) -> McpEnvironment:
        given = {"command": [sys.executable, SERVER, *words], "tasks": "tasks.jsonl", **options}
        environments.append(McpEnvironment(McpEnvironment.Options.model_validate(given, context={"base": tmp_path})))
        return environments[-1]

    yield make
    for environment in environments:
        environment.close()


@pytest.fixture
def begun(made: Callable[..., McpEnvironment]) -> Iterator[Callable[..., Episode]]:
    episodes = []

    def begin(*words: str, **options: Any) -> Episode:
        environment = made(*words, **options)
        episodes.append(environment.episode())
        episodes[-1].reset(Task(2, environment.task("train", 2, seed=0)), seed=5)
        return episodes[-1]

    yield begin
    for episode in episodes:
        episode.close()


def test_without_a_judge_the_last_text_must_be_the_answer(begun: Callable[..., Episode]) -> None:
    episode = begun()
    assert episode.reward() == Reward(0.0, success=False)
    for said in (" 2\n", "<think>\nI add 1.\n</think>\n\n2"):
        assert episode.reply(said).done
        assert episode.reward() == Reward(1.0, success=True)


def reward(task: dict[str, Any], messages: list[dict[str, Any]]) -> float:
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"number": 2}}
    return float(messages[2]["content"] == f"the sum is {task['answer']}")


def test_a_function_judges_the_transcript(begun: Callable[..., Episode]) -> None:
    episode = begun(reward=f"{__file__}:reward")
    episode.call(ToolCall("add", {"number": 2}))
    episode.reply("done")
    assert episode.reward().value == 1.0


def test_the_server_of_an_episode_sees_its_task_and_forgets_the_last_one(begun: Callable[..., Episode]) -> None:
    one, other = begun(tools=["add", "task"]), begun(tools=["add", "task"])
    assert json.loads(one.call(ToolCall("task", {})).content) == TASKS[2]
    one.call(ToolCall("add", {"number": 40}))
    assert other.call(ToolCall("add", {"number": 1})).content == "the sum is 1"


def test_episodes_of_a_rank_may_share_a_server_which_is_started_again(made: Callable[..., McpEnvironment]) -> None:
    environment = made("bad", server_per="rank")

    def begin() -> Episode:
        episode = environment.episode()
        episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
        return episode

    one, other = begin(), begin()
    one.call(ToolCall("add", {"number": 1}))
    one.close()
    assert other.call(ToolCall("add", {"number": 1})).content == "the sum is 2"
    with pytest.raises(AgentError, match="has ended in an episode"):
        other.call(ToolCall("die", {}))
    assert begin().call(ToolCall("add", {"number": 1})).content == "the sum is 1"


def test_a_tool_that_hangs_is_an_answer(begun: Callable[..., Episode]) -> None:
    episode = begun("bad", call_s=0.5)
    assert episode.call(ToolCall("hang", {})) == Observation("the tool hang did not answer within 0.5 s")
    episode.close()


def test_output_that_is_no_message_is_ignored(begun: Callable[..., Episode]) -> None:
    episode = begun("noisy")
    assert [episode.call(ToolCall("add", {"number": n})).content for n in (1, 2)] == ["the sum is 1", "the sum is 3"]


@pytest.mark.parametrize("last", ["", "empty", "again"])
def test_all_pages_of_tools_are_listed_with_their_schemas(made: Callable[..., McpEnvironment], last: str) -> None:
    """Whether the last page has no cursor, an empty one, or that of an earlier page."""
    environment = made("many", last)
    episode = environment.episode()
    tools = {tool.name: tool for tool in episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0).tools}
    assert len(tools) == 134
    assert tools["tool-129"].parameters["properties"]["at"]["anyOf"][0] == {"$ref": "#/$defs/Point"}
    episode.close()


def test_parts_that_are_no_text_are_shown_as_text(begun: Callable[..., Episode]) -> None:
    episode = begun("parts")
    found = {name: episode.call(ToolCall(name, {})).content for name in ("structured", "resource", "link", "nothing")}
    assert found == {"structured": '{"sum": 3}', "resource": "of a file", "link": "[file:///a]", "nothing": ""}


def test_a_server_that_does_not_start_is_no_mistake_of_the_model(made: Callable[..., McpEnvironment]) -> None:
    before = psutil.Process().children()
    lacking = [sys.executable, "-c", "import no_such_package"]
    for environment, why in (
        (made("deaf", start_s=0.5), r"it has not listed its tools within 0\.5 s\n"),
        (made(command=["no-such-server"]), "ended before .*; its last messages: no-such-server: No such file"),
        (made(command=lacking), "ended before .*ModuleNotFoundError: No module named 'no_such_package"),
        (made(command=["cat"]), "did not start: "),
        (made(tools=["no_such"]), "no tool 'no_such'"),
    ):
        episode = environment.episode()
        with pytest.raises(AgentError, match=why):
            episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
        episode.close()
    assert set(psutil.Process().children()) <= set(before)


def test_a_process_in_another_session_ends_with_its_episode(begun: Callable[..., Episode]) -> None:
    episode = begun("bad")
    left = psutil.Process(int(episode.call(ToolCall("leave", {})).content))
    assert left.is_running()
    episode.close()
    left.wait(HANG_S)


def test_a_process_in_another_session_ends_with_a_killed_rank(tmp_path: Path) -> None:
    write(tmp_path)
    code = (
        "import sys, time\nfrom rolemesh_mcp import McpEnvironment\nfrom rolemesh_agents import Task, ToolCall\n"
        f"options = {{'command': [sys.executable, {SERVER!r}, 'bad'], 'tasks': {str(tmp_path / 'tasks.jsonl')!r}}}\n"
        "made = McpEnvironment(McpEnvironment.Options.model_validate(options))\nepisode = made.episode()\n"
        "episode.reset(Task(0, made.task('train', 0, 0)), 0)\n"
        "print(episode.call(ToolCall('leave', {})).content, flush=True)\n"
        "time.sleep(600)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}, text=True)
    assert rank.stdout is not None
    left = psutil.Process(int(rank.stdout.readline()))
    below = psutil.Process(rank.pid).children(recursive=True)
    rank.kill()
    rank.wait()
    rank.stdout.close()
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in (left, *below)))


def test_a_text_that_the_reward_evaluates_harms_no_rank(made: Callable[..., McpEnvironment], tmp_path: Path) -> None:
    (tmp_path / "trusting.py").write_text("def reward(task, messages): return eval(messages[-1]['content'])")
    environment = made(server_per="rank", reward=f"{tmp_path / 'trusting.py'}:reward")
    for said, why in (
        ("__import__('os')._exit(3)", "it has ended its process with the exit status 3"),
        (f"open({str(tmp_path / 'pwned')!r}, 'w')", "PermissionError"),
        ("exit()", "SystemExit"),
    ):
        episode = environment.episode()
        episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
        episode.reply(said)
        with pytest.raises(AgentError, match=f"the function `reward` has failed: {why}"):
            episode.reward()
        episode.reply("1 + 1")
        assert episode.reward().value == 2.0
        episode.close()
    assert not (tmp_path / "pwned").exists()


def test_a_held_out_task_among_the_training_tasks_is_an_error(made: Callable[..., McpEnvironment]) -> None:
    with pytest.raises(OptionsError, match="among the training tasks"):
        made(held_out="tasks.jsonl")


@pytest.mark.parametrize(
    ("row", "lacks"),
    [
        ({"prompt": "2 + 2?", "solution": "4"}, "no answer"),
        ({"prompt": "2 + 2?", "answer": None}, "no answer"),
        ({"prompt": "2 + 2?", "answer": ["4", "four"]}, "no answer"),
        ({"prompt": None, "answer": "4"}, "neither a prompt nor messages"),
        ({"messages": [], "answer": "4"}, "neither a prompt nor messages"),
    ],
)
def test_a_task_that_nothing_can_judge_or_ask_is_an_error(
    made: Callable[..., McpEnvironment], tmp_path: Path, row: dict[str, Any], lacks: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(TASKS[0]) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(OptionsError, match=f"task 2 of .* {lacks}"):
        made(tasks=str(tmp_path / "rows.jsonl"))
    if lacks == "no answer":
        made(tasks=str(tmp_path / "rows.jsonl"), judge="judge")


@pytest.mark.parametrize(("answer", "said"), [(4, "4"), (True, "true"), (2.5, "2.5"), ("", "")])
def test_an_answer_that_is_no_text_is_compared_as_json(
    made: Callable[..., McpEnvironment], tmp_path: Path, answer: Any, said: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "x", "answer": answer}) + "\n")
    environment = made(tasks=str(tmp_path / "rows.jsonl"))
    episode = environment.episode()
    episode.reset(Task(0, environment.task("train", 0, seed=0)), seed=0)
    episode.reply(said)
    assert episode.reward() == Reward(1.0, success=True)
    episode.close()
