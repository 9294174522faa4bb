"""Tests that racks have about the same number of ranks, with any strategy, also after the loss of a node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh_pack import PackScheduler
from rolemesh_testing import SchedulerConformance

from rolemesh_toolbox.even import Even

RACKS = ClusterView(tuple(NodeView(f"n{n}", cpu=4, labels={"rack": "ab"[n > 1]}) for n in range(3)))


class TestEven(SchedulerConformance):
    plugin = "even"
    bad_options = ({"most": 0}, {"domain": "rack"}, {"role": "a"})
    examples = 40


def placed(size: int, **options: Any) -> PlacementPlan:
    """Plan the job. The default strategy places the ranks that `even` leaves."""
    request = PlacementRequest((RoleRequest("a", size, cpu=1),))
    strategies = [("even", Even(Even.Options(**options)).place), ("pack", PackScheduler(NoOptions()).place)]
    return plan_job(request, RACKS, strategies)


def test_racks_differ_by_one_rank_though_one_has_twice_as_many_nodes() -> None:
    plan = placed(7, domain="label.rack")
    found = Counter(RACKS.node(plan.node_of("a", rank)).labels["rack"] for rank in range(7))
    assert sorted(found.values()) == [3, 4]
    assert plan.constraints[0].told() == "even lets label.rack differ by 1 ranks of a"


def test_the_constraint_is_named_if_racks_cannot_be_even() -> None:
    assert len(placed(12, most=4, domain="label.rack").placed()) == 12
    left = placed(12, domain="label.rack").unplaced
    assert len(left) == 3
    assert "even lets label.rack differ by 1 ranks of a" in str(left[0])


def test_a_role_that_there_is_not_is_an_error_with_its_place() -> None:
    with pytest.raises(PlacementError, match="there is no role 'b'") as raised:
        placed(1, roles=["a", "b"])
    assert raised.value.where == "placement.0.options.roles.1"
