"""The scaler's answers to the memory that ranks report."""

from __future__ import annotations

from typing import Any

from rolemesh.api.observer import StepMetrics
from rolemesh_durable.scalers import Load, RoleLoad
from rolemesh_scaler_memory import MemoryOptions, MemoryScaler


def wanted(*used: dict[str, float], most: int = 8, room: int = 8, **options: Any) -> dict[str, int]:
    """Return the wanted sizes of `ps`, which has two ranks. `used`: what labels reported, by line."""
    roles = (RoleLoad("ps", 2, 1, most, room, 0.5), RoleLoad("ps2", 2, 2, 2, 2, 0.5))
    lines = tuple(
        StepMetrics(step, 1, 0.0, operators={label: {"memory": share} for label, share in each.items()})
        for step, each in enumerate(used)
    )
    found = MemoryScaler(MemoryOptions(**options)).decide(Load(10.0, 60.0, roles, (), metrics=lines))
    assert found is None or found.reason
    return found.sizes if found is not None else {}


def test_a_role_gets_the_ranks_with_which_each_is_less_than_full() -> None:
    assert wanted({"ps.update": 0.71}) == {"ps": 3}
    assert wanted({"ps.push": 1.5}) == {"ps": 5}
    assert wanted({"ps.update": 0.5}, full=0.4) == {"ps": 3}


def test_the_newest_line_counts() -> None:
    assert wanted({"ps.update": 0.2}, {"ps.update": 0.9}, {"clicks.next": 0.9}) == {"ps": 3}
    assert wanted({"ps.update": 0.9}, {"ps.update": 0.6}) == {}


def test_nobody_grows_without_a_report_or_room_or_a_range() -> None:
    assert wanted() == {}
    assert wanted({"ps2.update": 0.9}) == {}
    assert wanted({"ps.update": 0.9}, roles=["trainer"]) == {}
    assert wanted({"ps.update": 0.9}, room=2) == wanted({"ps.update": 0.9}, most=2) == {}
    assert wanted({"ps.update": 1.5}, room=3) == wanted({"ps.update": 1.5}, most=3) == {"ps": 3}
