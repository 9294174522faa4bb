"""The workloads of this distribution pass the conformance kit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from agent_bench import Model, SumOptions, Sums

from rolemesh import Batch, CalledBy, RankContext
from rolemesh_agents.workloads.environment import EnvironmentWorkload
from rolemesh_testing import WorkloadConformance, override

ENVIRONMENTS = {"environments": [{"use": "agent_bench:Sums", "options": {"tasks": 6}}]}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}, "id": "x"}
PAY = {"name": "pay", "arguments": {"cents": 5}, "id": "y"}


def task(number: int, split: Any = "train") -> dict[str, Any]:
    return {"number": number, "data": Sums(SumOptions(tasks=6)).task(split, number, 0), "split": split}


class TestTasks(WorkloadConformance):
    plugin = "tasks"
    plugins = ENVIRONMENTS
    options = {"groups": 4, "held_out": 5}
    bad_options = ({"groups": 0}, {"held_out": 0})
    world_sizes = (1, 2, 3)

    def step(self, role: Any, step: int) -> None:
        rows = role.next()
        assert rows["group"].tolist() == [*range(4 * step, 4 * step + 4)]
        assert role.held_out()["index"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.soak
class TestEnvironment(WorkloadConformance):
    plugin = "environment"
    plugins = ENVIRONMENTS
    bad_options = ({"content_kb": 0},)
    world_sizes = (1, 2)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        assert role.call_service("another_task", 5)["split"] == "train"
        assert role.call_service("begin", task(1), 3, 9.0, session="s")["messages"]
        for method, given in (("call", ADD), ("call_once", PAY), ("reply", {"content": "done"})):
            assert "failed" not in role.call_service(method, given, 9.0, session="s")
        assert role.call_service("reward", 9.0, session="s")["value"] == 0.0
        assert role.call_service("resume", task(1), 3, None, [], session="t") == {}
        role.call_service("end", session="t")

    @override("answers have the seconds that the episode worked; test_environment.py compares the rest")
    def test_the_same_seed_gives_the_same_results(self) -> None: ...

    @override("answers have the seconds that the episode worked; test_environment.py compares the rest")
    def test_the_world_size_does_not_change_results(self) -> None: ...

    @override("answers have the seconds that the episode worked; test_environment.py compares the rest")
    def test_its_generation_does_not_change_results(self) -> None: ...

    @override("answers have the seconds that the episode worked; test_environment.py compares the rest")
    def test_giving_memory_back_changes_nothing(self) -> None: ...

    @override("answers have the seconds that the episode worked; test_conversations.py kills the role in jobs")
    def test_a_kill_at_every_operator_boundary_changes_nothing(self) -> None: ...


@pytest.mark.soak
class TestSandbox(WorkloadConformance):
    plugin = "sandbox"
    plugins = {"sandboxes": [{"use": "guarded"}]}
    bad_options = ({"limits": {"seconds": 0}},)
    world_sizes = (1, 2)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        assert role.call_service("cell", "x = 6", session="s")["code"] == 0
        assert role.call_service("cell", "x * 7", session="s")["output"] == "42\n"
        assert role.call_service("run", ["cat"], "hello", session="s")["output"] == "hello"
        role.call_service("close", session="s")


@pytest.mark.soak
class TestAgent(WorkloadConformance):
    plugin = "agent"
    options = {"model": ".", "template": "agent_bench:load_template", "samples": 2}
    bad_options = ({"model": ".", "samples": 0}, {"model": ".", "limits": {"turns": 0}})
    world_sizes = (1, 2)
    steps = 2
    answers: ClassVar[dict[str, Any]] = {}

    def step(self, role: Any, step: int) -> None:
        numbers = np.arange(3) + 3 * step % 6
        dealt = Batch({"task": [task(int(n)) for n in numbers], "index": numbers, "group": numbers})
        rows = role.converse(tasks=dealt)
        assert rows["turns"].tolist() == [3] * 6
        assert role.samples(conversations=rows).rows == 6
        held = Batch({"task": [task(0, "eval")], "index": np.arange(1), "group": np.arange(1)})
        assert role.evaluate(tasks=held).rows == 1

    def answer(self, role: str, method: str, *arguments: Any, session: str) -> Any:
        """Answer as the role `environment` and a model of rules do; a repeated call has its logged answer."""
        key = repr((role, method, arguments, session))
        if key not in self.answers:
            self.answers[key] = asyncio.run(self.asked(method, arguments, session))
        return self.answers[key]

    async def asked(self, method: str, arguments: tuple[Any, ...], session: str) -> Any:
        if method == "sample":
            return await Model(self.environment._ctx).sample(*arguments)
        with self.environment._ctx.serving(CalledBy("agent", 0, 0, session)):
            return await getattr(self.environment, method)(*arguments)

    @pytest.fixture(autouse=True)
    def roles(self, tmp_path: Path) -> None:
        type(self).environment = EnvironmentWorkload(EnvironmentWorkload.Options(environment="sums"))
        plugins = {("environments", "sums"): lambda: Sums(SumOptions(tasks=6))}
        self.environment.setup(RankContext(plugins=plugins, tmp_dir=tmp_path))
        self.answers.clear()

    environment: ClassVar[EnvironmentWorkload]
