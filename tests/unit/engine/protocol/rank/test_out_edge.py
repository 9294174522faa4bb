"""A value that a group takes back must have no user. The edge names a consumer that has used it, now or later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolemesh.api.partition import Broadcast, Split
from rolemesh.graph.logical import Edge
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.rank.out_edge import OutEdge


@pytest.fixture
def out() -> OutEdge[Any]:
    """The producer's end of an edge. Both ranks of `sink` take every second step from it; no message leaves."""
    mail = SimpleNamespace(data=lambda *chunk: None, lose=lambda lost: None, generation=lambda role, consumer: 0)
    activity = SimpleNamespace(always=lambda op: True, consumed=lambda edge, step, steps: step % 2 == 0)
    job = SimpleNamespace(retention=True, activity=activity, steps=100)
    effects = SimpleNamespace(mail=mail, log=None)
    delivery = delivery_of(Edge(0, 0, 1, "rows", Split(), Broadcast()))
    return OutEdge(cast("Any", job), cast("Any", effects), delivery, "sink", [(cast("Any", None), (0, 1))], hold=1)


def test_a_consumer_that_used_the_value_before_is_named(out: OutEdge[Any]) -> None:
    out.asked(0, 0, 5, -1)
    out.void(5)
    with pytest.raises(LogLost, match="sink/0 has used what was made at step 4"):
        out.void(4)


def test_a_consumer_that_reports_its_use_later_is_named(out: OutEdge[Any]) -> None:
    out.void(4)
    out.asked(1, 0, 4, -1)
    with pytest.raises(LogLost, match="sink/0 has used what was made at step 4"):
        out.asked(0, 0, 5, -1)


def test_a_step_that_is_not_taken_has_been_used_by_nobody(out: OutEdge[Any]) -> None:
    out.asked(0, 0, 4, -1)
    out.void(3)
