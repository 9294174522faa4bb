"""Two plans beside each other."""

from __future__ import annotations

from rolemesh import PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.job.planning import plan_job
from rolemesh.placement import Transfer
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pack import PackScheduler
from rolemesh_subgraph import SubgraphOptions, SubgraphScheduler
from rolemesh_subgraph.preview import compared


def test_each_flow_and_role_is_told_under_both_plans() -> None:
    roles = RoleRequest("a", 2, cpu=2), RoleRequest("b", 2, cpu=1), RoleRequest("c", 2, cpu=1)
    transfers = Transfer("a", "c", bytes=100.0), Transfer("b", "c", "all"), Transfer("a", "b", bytes=1.0)
    request, cluster = PlacementRequest(roles, transfers), parse_nodes("2x(cpu=4)")
    plan = plan_job(request, cluster, [("subgraph", SubgraphScheduler(SubgraphOptions()).place)])
    by_role = plan_job(request, cluster, [("pack", PackScheduler(NoOptions()).place)])
    found = compared(request, plan, by_role)
    assert [(each["from"], each["to"], each["pattern"], each["bytes"]) for each in found["transfers"]] == [
        ("a", "c", "aligned", 100.0),
        ("b", "c", "all", None),
        ("a", "b", "aligned", 1.0),
    ]
    for which in ("crossing", "crossing_by_role"):
        assert found[which] == sum(each[which] for each in found["transfers"])
    assert (found["total"], found["crossing"], found["unknown_transfers"]) == (101.0, 0.0, 1)
    assert found["nodes_by_role"]["a"] == {"node-0": 2}
    assert found["nodes"]["a"] == found["nodes"]["c"] == {"node-0": 1, "node-1": 1}
