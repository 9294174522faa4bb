"""Which of several settings of an environment variable a role's processes get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rolemesh.api.workload import Workload
from rolemesh_runtime.variables import role_variables


class Talker(Workload):
    env = {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "LEVEL": "WARNING"}

    @classmethod
    def process(cls, options: Any) -> Any:
        return ("json",), cls.env | {"LEVEL": "DEBUG", "INVARIANT": "1"}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("HF_HUB_OFFLINE", "user"),  # a default of the workload
        ("OMP_NUM_THREADS", "user"),  # a default of every rank
        ("TOKEN", None),  # inherited
        ("LEVEL", "DEBUG"),  # the workload's options say so
        ("INVARIANT", "1"),
        ("GIVEN", "job file"),
    ],
)
def test_a_variable_of_the_user_beats_a_default_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, name: str, found: str | None
) -> None:
    monkeypatch.setenv(name, "user")
    selected: Any = SimpleNamespace(cls=Talker, options=None)
    preload, variables = role_variables(selected, {"GIVEN": "job file"}, {"OMP_NUM_THREADS": "1"})
    assert preload == ("json",)
    assert variables.get(name) == found


def test_defaults_hold_without_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    selected: Any = SimpleNamespace(cls=Talker, options=None)
    _, variables = role_variables(selected, {})
    assert (variables["HF_HUB_OFFLINE"], variables["PYTHONHASHSEED"]) == ("1", "0")
