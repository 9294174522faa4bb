"""Workloads with and without a constructor of their own have their options."""

from __future__ import annotations

from typing import Any

import pytest

from rolemesh import Workload
from rolemesh_runtime.constructing import constructed


class Plain(Workload):
    """Without a constructor."""


class Bare(Workload):
    """With a constructor that takes nothing, and does not call the base's."""

    def __init__(self) -> None:
        self.made = 1


class Taking(Workload):
    """With a constructor that takes the options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.made = options["made"]


@pytest.mark.parametrize("cls", [Plain, Bare, Taking])
def test_each_constructor_makes_a_workload_with_its_options(cls: type[Workload]) -> None:
    options = {"made": 1}
    workload = constructed(cls, options)
    assert workload.options is options
    assert getattr(workload, "made", 1) == 1
