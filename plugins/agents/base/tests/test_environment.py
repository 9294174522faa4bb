"""The role `environment`: episodes are restored as they were, and none is left open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_bench import SumOptions, Sums

from rolemesh import CalledBy, RankContext
from rolemesh_agents import AgentError, Episode, Observation, Reward, Start, Task, ToolCall
from rolemesh_agents.conversations.action_log import ActionLog
from rolemesh_agents.workloads.environment import EnvironmentWorkload

TASK = {"number": 3, "data": Sums(SumOptions()).task("train", 3, 0), "split": "train"}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}, "id": "x"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ranks' folder, which is the present one here, be the test's."""
    monkeypatch.chdir(tmp_path)


def rank(cls: type[Sums] = Sums, **sums: Any) -> EnvironmentWorkload:
    made = EnvironmentWorkload(EnvironmentWorkload.Options(environment="sums"))
    plugins = {("environments", "sums"): lambda: cls(SumOptions(**sums))}
    made.setup(RankContext(plugins=plugins))
    return made


async def asked(role: EnvironmentWorkload, call: Coroutine[Any, Any, Any], session: str = "s", step: int = 0) -> Any:
    with role._ctx.serving(CalledBy("agent", 0, step, session)):
        return await call


def test_an_action_with_another_answer_than_before_fails_the_restore() -> None:
    async def restores() -> None:
        log, first, second = ActionLog(), rank(), rank()
        await asked(first, first.begin(TASK, 1, 5.0))
        answer = await asked(first, first.call(ADD, 5.0))
        log.answered("call", ADD, 5.0, True, answer)
        good = [msgspec.to_builtins(action) for action in log.plan().actions]
        assert await asked(second, second.resume(TASK, 1, None, good)) == {}
        log.answered("call", ADD, 5.0, True, {**answer, "content": "4"})
        bad = [msgspec.to_builtins(action) for action in log.plan().actions]
        failed = (await asked(second, second.resume(TASK, 1, None, bad), "t"))["failed"]
        assert "repeated action 1 (add) of the episode has another answer than before" in failed

    asyncio.run(restores())


class Hearing(Episode):
    """Answers with the turn of which a call is the first one."""

    heard: tuple[str, int] = ("", 0)

    def reset(self, task: Task, seed: int) -> Start:
        return Start([{"role": "user", "content": "Go on."}])

    def reward(self) -> Reward:
        return Reward(0.0)

    def hear(self, content: str, calls: Sequence[ToolCall]) -> None:
        self.heard = content, len(calls)

    def call(self, call: ToolCall) -> Observation:
        return Observation(f"{self.heard}")


def test_an_episode_hears_a_whole_turn_before_its_first_call_and_again_when_it_is_restored() -> None:
    class Heard(Sums):
        def episode(self) -> Episode:
            return Hearing()

    async def restores() -> None:
        log, first, second = ActionLog(), rank(cls=Heard), rank(cls=Heard)
        assert (await asked(first, first.begin(TASK, 1, 5.0)))["hears"]
        given = {**ADD, "turn": ["I add.", [ADD, ADD]]}
        answer = await asked(first, first.call(given, 5.0))
        assert answer["content"] == "('I add.', 2)"
        log.answered("call", given, 5.0, True, answer)
        actions = [msgspec.to_builtins(action) for action in log.plan().actions]
        assert await asked(second, second.resume(TASK, 1, None, actions)) == {}

    asyncio.run(restores())


def test_a_state_replaces_the_actions() -> None:
    async def restores() -> None:
        first, second = rank(states=True), rank(states=True)
        await asked(first, first.begin(TASK, 1, 5.0))
        state = (await asked(first, first.call(ADD, 5.0)))["state"]
        assert await asked(second, second.resume(TASK, 1, state, [])) == {}
        assert (await asked(second, second.reward(5.0)))["parts"] == {"steps": 1.0}

    asyncio.run(restores())


def test_episodes_that_nobody_ends_are_closed_at_the_commit_of_their_step() -> None:
    async def begins() -> EnvironmentWorkload:
        role = rank()
        for step in (0, 1, 2):
            await asked(role, role.begin(TASK, 1, 5.0), f"s{step}", step)
        return role

    role = asyncio.run(begins())
    role.committed(1)
    assert list(role._episodes) == ["s2"]
    role.teardown()
    assert not role._episodes


def test_a_call_without_an_episode_is_a_failure() -> None:
    role = rank()
    answer = asyncio.run(asked(role, role.call(ADD, 5.0)))
    assert "the episode raised LookupError: there is no episode in this session (" in answer["failed"]
    assert "the log of role" in answer["failed"]


@pytest.mark.parametrize(
    ("size", "reason"),
    [(0, "sums has no tasks in the split train"), (-1, "has -1 as the size"), (None, "the server is down")],
)
def test_another_task_that_the_environment_does_not_have_is_an_answer_with_the_reason(
    size: int | None, reason: str
) -> None:
    class Few(Sums):
        def size(self, split: str) -> int:
            if size is None:
                raise AgentError("the server is down", remedy="start it")
            return size

    role = rank(cls=Few)
    answer = asyncio.run(asked(role, role.another_task(1)))
    assert reason in answer["failed"]
    assert answer.get("remedy") or "→ start it" in answer["failed"]


def test_an_episode_that_cannot_be_made_is_an_answer_with_the_reason() -> None:
    class Broken(Sums):
        def episode(self) -> Episode:
            raise AgentError("there is no such class", remedy="install it")

    role = rank(cls=Broken)
    answer = asyncio.run(asked(role, role.begin(TASK, 1, 5.0)))
    assert answer == {"failed": "the episode raised AgentError: there is no such class\n  → install it"}
