"""The scaler's answers to the load of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad
from rolemesh_scaler_backlog import BacklogOptions, BacklogScaler


def wanted(
    busy: dict[str, float],
    waits: dict[str, tuple[float, float]],
    ranks: int = 2,
    most: int = 8,
    room: int = 8,
    **options: Any,
) -> dict[str, int]:
    """Return the wanted sizes of a chain data → work → train. `waits`: consumer → its wait, and its producer's."""
    roles = [RoleLoad("data", 1, 1, 1, 1, busy["data"])]
    roles += [RoleLoad(role, ranks, 1, most, room, busy[role]) for role in ("work", "train")]
    chain = (("data", "work"), ("work", "train"))
    edges = tuple(EdgeLoad(src, dst, f"{dst}.call", "rows", *waits.get(dst, (0.0, 0.0))) for src, dst in chain)
    found = BacklogScaler(BacklogOptions(**options)).decide(Load(10.0, 60.0, tuple(roles), edges))
    assert found is None or found.reason
    return found.sizes if found is not None else {}


SLOW = {"data": 0.1, "work": 0.95, "train": 0.5}


def test_a_role_that_blocks_others_gets_the_ranks_that_end_the_wait_and_at_most_twice_its_ranks() -> None:
    assert wanted(SLOW, {"train": (0.3, 0.0)}) == {"work": 3}
    assert wanted(SLOW, {"train": (0.9, 0.0)}) == {"work": 4}
    assert wanted(SLOW, {"work": (0.0, 0.9)}) == {"work": 4}, "what cannot be handed on holds its producer up"


def test_nobody_grows_who_waits_as_well_or_holds_nobody_up_or_has_no_room() -> None:
    assert wanted({**SLOW, "work": 0.5}, {"train": (0.5, 0.0)}) == {}
    assert wanted(SLOW, {"train": (0.1, 0.0)}) == {}
    assert wanted(SLOW, {"train": (0.9, 0.0)}, room=2) == {}
    assert wanted(SLOW, {"train": (0.9, 0.0)}, room=3) == {"work": 3}
    assert wanted(SLOW, {"train": (0.9, 0.0)}, most=2) == {}
    assert wanted(SLOW, {"train": (0.9, 0.0)}, roles=["train"]) == {}


def test_a_role_with_too_little_work_gets_fewer_ranks_unless_another_waits_for_it() -> None:
    idle = {"data": 0.9, "work": 0.05, "train": 0.5}
    assert wanted(idle, {"work": (0.9, 0.0)}) == {"work": 1}
    assert wanted(idle, {"work": (0.9, 0.0)}, ranks=8) == {"work": 2}
    assert wanted(idle, {"work": (0.9, 0.0), "train": (0.4, 0.0)}) == {}
    assert wanted(idle, {"work": (0.9, 0.0)}, idle=0.0) == {}


def test_one_grows_while_another_shrinks() -> None:
    assert wanted({"data": 0.1, "work": 1.0, "train": 0.02}, {"train": (0.97, 0.0)}) == {"work": 4, "train": 1}


def test_a_resize_that_has_helped_is_not_undone() -> None:
    """With the ranks that it gets nobody waits any more, and they have enough to do."""
    assert wanted({"data": 0.1, "work": 0.5, "train": 0.9}, {"train": (0.02, 0.0)}, ranks=4) == {}


@pytest.mark.parametrize("options", [{"busy": 0}, {"held_up": 1}, {"idle": 1}, {"agree": 0}, {"role": "work"}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BacklogOptions(**options)


def test_the_job_in_the_readme_has_options_that_the_scaler_knows() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [use] = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["plugins"]["scalers"]
    assert BacklogOptions(**use["options"]).roles == ["rollout"]
