"""The kit runs coroutines, gives an operator one item at a time, answers for other roles, and calls services."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.conformance.agents import Agent, Reader, Tool
from tests.conformance.harness import outcomes

from rolemesh import Batch
from rolemesh_testing import WorkloadConformance

LIFE = {
    "test_it_has_operators_that_a_flow_can_call",
    "test_every_operator_is_called",
    "test_its_operators_work_at_every_world_size",
    "test_the_world_size_does_not_change_results",
    "test_a_kill_at_every_operator_boundary_changes_nothing",
    "test_any_rank_answers_a_service_alike",
    "test_nothing_is_left_after_teardown",
}


class AgentConformance(WorkloadConformance):
    plugin = Agent
    world_sizes = (1, 3)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        made = role.work(tasks=Batch({"n": np.arange(5)}))
        assert list(made["n"]) == [0, 2, 4, 6, 8]

    def answer(self, role: str, method: str, *arguments: Any, session: str) -> Any:
        assert (role, method) == ("tool", "double")
        assert session
        return 2 * arguments[0]


class ToolConformance(WorkloadConformance):
    plugin = Tool
    world_sizes = (1, 2)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        assert [role.call_service("double", n) for n in range(2)] == [0, 2]
        first = 2 * step + 1
        assert [role.call_service("move", "go", session="a game") for _ in range(2)] == [first, first + 1]


class ReaderConformance(WorkloadConformance):
    plugin = Reader
    plugins = {"sources": [{"use": "files", "options": {"path": "in/*.jsonl"}}]}
    world_sizes = (1, 2)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        [path] = role.where()
        assert path.endswith("in/*.jsonl")


def test_an_asynchronous_agent_and_a_role_with_services_only_pass() -> None:
    found = outcomes({"TestAgent": AgentConformance, "TestTool": ToolConformance}, chosen=dict.fromkeys(BOTH, LIFE))
    assert not found.failed, found.output
    assert found.seen == dict.fromkeys(BOTH, LIFE)


BOTH = ("TestAgent", "TestTool")


def test_a_workload_has_what_its_job_lists_under_plugins() -> None:
    without = type("Without", (ReaderConformance,), {"plugins": {}})
    life = {"test_every_operator_is_called", "test_a_kill_at_every_operator_boundary_changes_nothing"}
    classes = {"TestReader": ReaderConformance, "TestNone": without}
    found = outcomes(classes, chosen=dict.fromkeys(classes, life))
    assert {name: len(failed) for name, failed in found.failed.items()} == {"TestNone": 1}, found.output
    assert "list files under plugins.sources" in found.output


def test_a_call_that_nobody_answers_is_named() -> None:
    silent = type("Silent", (AgentConformance,), {"answer": WorkloadConformance.answer})
    [text] = (
        outcomes({"TestIt": silent}, chosen={"TestIt": {"test_every_operator_is_called"}}).failed["TestIt"].values()
    )
    assert "an operator calls the service tool.double" in text
    assert "define answer(self, role, method, *arguments, session)" in text
