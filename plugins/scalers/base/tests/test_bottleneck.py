"""The scaler's answer to one load: the named bottleneck, the new sizes, and the cases without a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rolemesh.errors import RolemeshError
from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad, Wanted
from rolemesh_scaler_bottleneck import BottleneckOptions, BottleneckScaler, bottleneck


def load(busy: dict[str, float], *edges: tuple[str, str, float, float, int], **ranks: int) -> Load:
    """Roles of 1 to 8 ranks, `data` of one, with room for all; edges: from, to, waiting, blocked, lag."""
    roles = [
        RoleLoad(name, ranks.get(name, 1), 1, 1 if name == "data" else 8, 8, share) for name, share in busy.items()
    ]
    found = tuple(EdgeLoad(a, b, f"{b}.call", "rows", waits, blocked, lag) for a, b, waits, blocked, lag in edges)
    return Load(5.0, 60.0, tuple(roles), found)


def wanted(seen: Load, **options: Any) -> Wanted | None:
    return BottleneckScaler(BottleneckOptions(**options)).decide(seen)


def sizes(seen: Load, **options: Any) -> dict[str, int]:
    found = wanted(seen, **options)
    return found.sizes if found is not None else {}


SLOW = load({"data": 0.2, "work": 1.0, "train": 0.4}, ("data", "work", 0, 0.8, 0), ("work", "train", 0.6, 0, 0))


def test_the_reason_has_the_bottleneck_with_its_edge_and_the_lost_time() -> None:
    found = wanted(SLOW)
    assert found is not None
    assert found.sizes == {"work": 6, "train": 3}, "as fast as data is, each busy for 0.9 of the time at most"
    assert found.reason.startswith("train waited for rows from work for 60% of the time; ranks: work 1 → 6")


def test_with_a_full_budget_the_bottleneck_takes_ranks_from_a_role_that_waits() -> None:
    chain = (("data", "work", 0, 0.8, 0), ("work", "train", 0.8, 0, 0))
    full = load({"data": 0.1, "work": 1.0, "train": 0.2}, *chain, work=2, train=4)
    assert sizes(full, budget=6) == {"work": 4, "train": 2}
    assert sizes(full, budget=7) == {"work": 5, "train": 2}
    assert sizes(full, budget=5) == {"work": 3, "train": 2}, "more than the budget is taken back"
    assert sizes(full, budget=10, cost={"work": 2}) == {"work": 4, "train": 2}
    assert sizes(full, budget=6, roles=["train"]) == {"train": 2}, "work is not its business"


def test_roles_that_wait_for_each_other_in_turn_are_named_as_a_loop_and_grow_by_the_root_of_their_work() -> None:
    seen = load({"rollout": 0.64, "train": 0.36}, ("rollout", "train", 0.64, 0, 0), ("train", "rollout", 0.36, 0, 1))
    held = bottleneck(seen)
    assert held is not None
    assert (held.role, held.edge.consumer, held.loop) == ("rollout", "train", ("rollout", "train"))
    assert "rollout → train → rollout wait for each other in turn" in str(held)
    assert sizes(seen, budget=7) == {"rollout": 4, "train": 3}
    lag = load({"rollout": 0.64, "train": 0.36}, ("rollout", "train", 0, 0, 0), ("train", "rollout", 0, 0, 2))
    assert bottleneck(lag) is None, "two steps may be under way: it is something else"
    assert sizes(lag) == {}


def test_a_resize_that_helps_too_little_is_left_out() -> None:
    fixed = load({"data": 0.97, "work": 1.0}, ("data", "work", 0, 0.03, 0), work=4)
    assert sizes(fixed) == {}
    assert sizes(fixed, gain=0.02) == {"work": 5}


def test_ranks_to_spare_are_given_back_and_not_asked_for_again() -> None:
    chain = (("data", "work", 0.4, 0, 0),)
    assert sizes(load({"data": 1.0, "work": 0.3}, *chain, work=8)) == {"work": 4}
    assert sizes(load({"data": 1.0, "work": 0.6}, *chain, work=4)) == {}
    assert sizes(load({"data": 1.0, "work": 0.8}, *chain, work=3)) == {}
    assert sizes(load({"data": 1.0, "work": 0.3}, *chain, work=8), idle=0.9) == {"work": 3}


def test_a_role_grows_only_into_free_room_or_into_room_that_another_gives_up() -> None:
    full = Load(
        5.0, 60.0,
        (RoleLoad("work", 2, 1, 8, 2, 1.0), RoleLoad("train", 4, 1, 8, 4, 0.2)),
        (EdgeLoad("work", "train", "train.call", "rows", 0.8, 0.0),),
    )  # fmt: skip
    assert sizes(full, budget=6) == {"train": 2}
    assert sizes(full) == {"train": 2}, "which it has to spare, too"


def test_no_role_grows_if_none_computes_much_or_none_sends_anything() -> None:
    assert sizes(load({"work": 0.4, "train": 0.4}, ("work", "train", 0.6, 0, 0))) == {}
    assert sizes(load({"work": 1.0, "train": 1.0})) == {}


def test_names_in_the_options_are_roles_of_the_job() -> None:
    with pytest.raises(RolemeshError, match="cost of the scaler bottleneck names 'wrok', which is no role") as raised:
        sizes(SLOW, cost={"wrok": 2})
    assert "work" in str(raised.value)


@pytest.mark.parametrize("options", [{"budget": 0}, {"cost": {"a": 0}}, {"gain": 0}, {"idle": 2}, {"role": "work"}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BottleneckOptions(**options)


def test_the_job_in_the_readme_has_options_that_the_scaler_knows() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    [use] = yaml.safe_load(text.split("```yaml\n")[2].split("```")[0])["plugins"]["scalers"]
    assert BottleneckOptions(**use["options"]).budget == 16
