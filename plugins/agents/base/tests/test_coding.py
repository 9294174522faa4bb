"""The environment `coding`: what solves a task, what does not, and what a model may break on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents import AgentError, Limits, Task, ToolCall
from rolemesh_agents.coding import CodingEnvironment, CodingEpisode, CodingOptions
from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox
from rolemesh_testing import EnvironmentConformance

MEDIAN = """
def median(numbers):
    ordered, half = sorted(numbers), len(numbers) // 2
    return (ordered[half] + ordered[~half]) / 2
"""
SLUG = """
import re

def slug(title):
    return "-".join(re.findall("[a-z0-9]+", title.lower()))
"""
COUNT = """#!/bin/sh
grep -cw "$2" "$1"
true
"""
SOLUTIONS = {0: ("stats.py", MEDIAN), 1: ("text.py", SLUG), 2: ("count.sh", COUNT)}
TRICKS = {
    "nothing": "true",
    "an early exit": "printf 'import sys; sys.exit(0)' > sitecustomize.py; rm -f *.sh",
    "a file of tests of its own": "echo true > test.sh; echo > test_stats.py; echo > test_text.py",
    "a program that hangs": "sleep 60",
    "a module that ends the interpreter": "echo 'import os; os._exit(0)' | tee stats.py text.py > unittest.py",
    "a folder in the place of the tests": "mkdir test.sh test_stats.py; touch test.sh/x test_stats.py/x",
    "a pipe in the place of the tests": "mkfifo test.sh test_stats.py",
    "no right to write": "chmod 555 .",
    "a full folder": "head -c 999999999 /dev/zero > big",
}


HELD_OUT = Path(__file__).with_name("coding_held_out.jsonl")


class TestCoding(EnvironmentConformance):
    plugin = "coding"
    options: ClassVar[dict[str, Any]] = {"held_out": str(HELD_OUT)}
    bad_options = ({"tasks": 1}, {"held_out": "nowhere.jsonl"})
    sandbox: ClassVar[dict[str, Any]] = {"use": "guarded"}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[ProcessSandbox]:
    (tmp_path / "folder").mkdir()
    made = ProcessSandbox(ProcessOptions())
    made.open(tmp_path / "folder", Limits(seconds=5))
    yield made
    made.close()


def begun(sandbox: Any, number: int) -> CodingEpisode:
    environment = CodingEnvironment(CodingOptions())
    episode = environment.episode()
    episode.sandbox = sandbox
    episode.reset(Task(number, environment.task("train", number, 0)), 0)
    return episode


@pytest.mark.parametrize("number", SOLUTIONS)
def test_a_solved_task_is_worth_1(sandbox: ProcessSandbox, number: int) -> None:
    episode = begun(sandbox, number)
    path, text = SOLUTIONS[number]
    episode.call(ToolCall("write", {"path": path, "text": text}))
    assert episode.call(ToolCall("run", {"command": f"cat {path}"})).content == f"{text}\n[exit status 0]"
    assert (episode.reward().value, episode.reward().success) == (1.0, True)


@pytest.mark.parametrize(
    ("number", "trick"), [(1, "nothing"), *((number, trick) for number in (0, 2) for trick in TRICKS)], ids=str
)
def test_an_unsolved_task_is_worth_0(sandbox: ProcessSandbox, number: int, trick: str) -> None:
    episode = begun(sandbox, number)
    episode.call(ToolCall("run", {"command": TRICKS[trick]}))
    assert (episode.reward().value, episode.reward().success) == (0.0, False)


def test_the_model_writes_files_and_is_told_why_it_cannot(sandbox: ProcessSandbox) -> None:
    episode = begun(sandbox, 0)
    assert (
        episode.call(ToolCall("write", {"path": "a b/c.py", "text": "x = 1\n"})).content == "a b/c.py has 1 lines now"
    )
    assert sandbox.run("cat 'a b/c.py'").output == "x = 1\n"
    assert "stats.py" in episode.call(ToolCall("write", {"path": "stats.py/x", "text": ""})).content


def test_an_episode_goes_on_from_its_state(sandbox: ProcessSandbox, tmp_path: Path) -> None:
    episode = begun(sandbox, 2)
    episode.call(ToolCall("write", dict(zip(("path", "text"), SOLUTIONS[2], strict=True))))
    other = CodingEpisode()
    other.restore(episode.snapshot())
    other.sandbox = sandbox
    assert other.reward().value == 1.0


def test_a_role_without_a_sandbox_is_told_what_to_write() -> None:
    with pytest.raises(AgentError, match="no sandbox"):
        begun(None, 0)


def test_a_line_that_is_no_task_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "a", "test": "true"}) + '\n{"prompt": 1}\n')
    with pytest.raises(OptionsError, match=r"tasks.jsonl:2 is no task") as caught:
        CodingEnvironment(CodingOptions(tasks=str(tmp_path / "tasks.jsonl")))
    assert "a task has prompt, test, files, hidden, image" in str(caught.value)


def test_the_file_of_tasks_is_beside_the_job_file_wherever_the_command_starts(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "a", "test": "true"}))
    options = CodingOptions.model_validate({"tasks": "tasks.jsonl"}, context={"base": tmp_path})
    assert CodingEnvironment(options).size("train") == 1


@pytest.mark.parametrize(
    ("test", "hidden", "missing"),
    [
        ("pytst -q", (), True),
        ("A=1 B= pytst -q", (), True),
        ("judge.sh", (), True),
        ("PATH=.:$PATH judge.sh", ("judge.sh",), False),
        ("./judge.sh", (), False),
        ("cd . && pytst", (), False),
        ("if true; then true; fi", (), False),
        ("python3 -I test.py", (), False),
        ("(pytst)", (), False),
        ('A="1 2" pytst', (), False),
    ],
)
def test_a_test_without_its_program_fails_the_conversation_and_not_the_model(
    sandbox: ProcessSandbox, test: str, hidden: tuple[str, ...], missing: bool
) -> None:
    episode = CodingEnvironment(CodingOptions()).episode()
    episode.sandbox = sandbox
    task = Task(0, {"prompt": "x", "test": test, "hidden": dict.fromkeys(hidden, "")})
    if missing:
        with pytest.raises(AgentError, match="the sandbox has no program"):
            episode.reset(task, 0)
    else:
        episode.reset(task, 0)


def test_a_test_that_a_limit_ends_is_counted(sandbox: ProcessSandbox) -> None:
    episode = CodingEnvironment(CodingOptions()).episode()
    episode.sandbox = sandbox
    episode.reset(Task(0, {"prompt": "x", "test": "sleep 60"}), 0)
    assert episode.reward().parts == {"test_over_limit": 1.0}
