"""Tests that the agent solves tasks with the tool's answers, and that the sandbox evaluates only arithmetic."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from rolemesh import Batch, RankContext
from rolemesh_testing import WorkloadConformance

from rolemesh_fieldkit.agent import Sandbox


def sandbox() -> Sandbox:
    made = Sandbox(Sandbox.Options(letters=20))
    made.setup(RankContext())
    return made


class TestAgent(WorkloadConformance):
    plugin = "guesser"
    options = {"turns": 3}  # noqa: RUF012
    bad_options = ({"turns": 0}, {"tools": ["sandbox"]})
    world_sizes = (1, 3)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        tasks = Batch({"start": np.arange(5) + step, "goal": np.arange(5) * 3})
        assert role.solve(tasks=tasks)["solved"].all()

    def answer(self, role: str, method: str, *arguments: Any, session: str) -> Any:
        assert (role, method) == ("sandbox", "evaluate")
        return asyncio.run(sandbox().evaluate(arguments[0]))


class TestSandbox(WorkloadConformance):
    plugin = "arithmetic"
    bad_options = ({"letters": 0},)
    world_sizes = (1, 2)
    steps = 1

    def step(self, role: Any, step: int) -> None:
        assert role.call_service("evaluate", f"{step} + 2 * 3") == step + 6
        assert role.call_service("evaluate", "open('x')") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2", 3),
        ("-(2 - 5) * 4", 12),
        ("1 +", None),
        ("2 ** 9", None),
        ("x", None),
        ("'a' + 'b'", None),
        ("1" * 21, None),
    ],
)
def test_only_sums_and_products_of_whole_numbers_have_a_value(text: str, value: int | None) -> None:
    assert asyncio.run(sandbox().evaluate(text)) == value
