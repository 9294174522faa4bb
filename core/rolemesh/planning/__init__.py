"""From a traced job and a view of the cluster to a placement plan, and to words about it. All of it is pure."""

from rolemesh.planning.elastic import elastic_roles, has_room, largest
from rolemesh.planning.explain import explain
from rolemesh.planning.nodes import parse_nodes
from rolemesh.planning.strategies import Strategy, check_placed, flows_of, plan_job, plan_selected, request_of

__all__ = [
    "Strategy",
    "check_placed",
    "elastic_roles",
    "explain",
    "flows_of",
    "has_room",
    "largest",
    "parse_nodes",
    "plan_job",
    "plan_selected",
    "request_of",
]
