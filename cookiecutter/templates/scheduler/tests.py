"""Ranks go to the nodes in turn; a rank that does not fit goes to the next node, or has no place."""

import pytest
from rolemesh import ClusterView, NodeView, PlacementError, PlacementPlan, PlacementRequest, RoleRequest
from rolemesh_testing import SchedulerConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(SchedulerConformance):
    """The tests that every placement strategy must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"roles": "all"},)


NODES = ClusterView((NodeView("a", cpu=2), NodeView("b", cpu=1), NodeView("c", cpu=2)))


def placed(*roles: RoleRequest, options: dict[str, list[str]] | None = None) -> PlacementPlan:
    chosen = {{ cookiecutter.__class }}.Options.model_validate(options or {})
    return {{ cookiecutter.__class }}(chosen).place(PlacementRequest(roles), NODES, PlacementPlan())


def test_ranks_are_dealt_out_in_turn_and_a_full_node_is_passed_over() -> None:
    plan = placed(RoleRequest("x", 3), RoleRequest("y", 2))
    assert [plan.node_of("x", rank) for rank in range(3)] == ["a", "b", "c"]
    assert [plan.node_of("y", rank) for rank in range(2)] == ["a", "c"]


def test_a_rank_that_fits_nowhere_is_told_with_what_is_missing() -> None:
    plan = placed(RoleRequest("x", 3, cpu=2))
    [unplaced] = plan.unplaced
    assert (unplaced.role, unplaced.rank) == ("x", 2)
    assert "needs cpu 2" in unplaced.reason


def test_only_the_roles_of_the_options_are_dealt_out() -> None:
    plan = placed(RoleRequest("x", 1), RoleRequest("y", 1), options={"roles": ["y"]})
    assert plan.placed() == {("y", 0)}


def test_a_role_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(PlacementError, match="there is no role 'z'"):
        placed(RoleRequest("x", 1), options={"roles": ["z"]})
