"""The standard tests of a workload, for plain Python in the role `function`: a class with state, and a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh_testing import WorkloadConformance

HELLO = Path(__file__).resolve().parents[2] / "examples" / "hello"


class TestClass(WorkloadConformance):
    plugin = "function"
    options = {"target": "roles.py:Sum", "kwargs": {"start": 3}}
    bad_options = (
        {"target": "roles.py:NoSuch"},
        {"target": "nowhere.py:Sum"},
        {"kwargs": {"begin": 3}},
        {"inputs": {"number": "split"}},
        {"returns": "scattered"},
    )

    @pytest.fixture
    def base(self) -> Path:
        """The folder of ``roles.py``."""
        return HELLO

    def step(self, role: Any, step: int) -> None:
        role.add(numbers=Batch({"number": list(range(step, step + 7))}))


class TestFunction(WorkloadConformance):
    plugin = "function"
    options = {"target": "roles.py:numbers"}
    world_sizes = (1,)

    @pytest.fixture
    def base(self) -> Path:
        """The folder of ``roles.py``."""
        return HELLO

    def step(self, role: Any, step: int) -> None:
        role.numbers()


class TestRepeating(WorkloadConformance):
    """A class with a state of its own, which returns its last input again."""

    plugin = "function"
    options = {"target": "repeating.py:Repeating", "inputs": {"weights": "broadcast"}}

    @pytest.fixture
    def base(self) -> Path:
        """The folder of ``repeating.py``."""
        return Path(__file__).parent

    def step(self, role: Any, step: int) -> None:
        role.generate(x=np.arange(6.0) + step)
        role.load(weights=np.full(3, float(step + 1)))
