"""The delivery of values to steps: one policy per edge, which the partition and the lag choose.

A policy answers every question of the engine that differs between edges. Its module also holds the rank's in-port.

| delivery | a step takes | the flow says |
| --- | --- | --- |
| `exact` | the value of `lag` steps before | `lag=k` |
| `newest` | the newest value that has come, at most `lag` steps old | `lag=AtMost(k)` |
| `items` | the value of `lag` steps before, whose rows several ranks made by demand | `lag=k` of `Balanced` |
| `first` | the items that were finished first, at most `lag` steps old | `lag=AtMost(k)` of `Balanced` |
"""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import by_demand
from rolemesh_durable.protocol.delivery.exact import Exact, InPort
from rolemesh_durable.protocol.delivery.first import First
from rolemesh_durable.protocol.delivery.items import Items
from rolemesh_durable.protocol.delivery.newest import Newest
from rolemesh_durable.protocol.delivery.policy import ConsumerEnd, Delivery

__all__ = ["ConsumerEnd", "Delivery", "InPort", "delivery_of"]

_POLICIES: Mapping[tuple[bool, bool], type[Delivery]] = {
    (False, False): Exact,
    (False, True): Newest,
    (True, False): Items,
    (True, True): First,
}
"""The policy of an edge, by two facts: its rows are made by demand, and its lag is a bound."""


def delivery_of(edge: Edge) -> Delivery:
    """Return the policy of `edge`."""
    return _POLICIES[by_demand(edge.src_partition) is not None, edge.newest](edge)
