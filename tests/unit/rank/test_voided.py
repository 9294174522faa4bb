"""What a group takes back must be in nobody's hands: whoever has used it is named, now or when it says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rolemesh.api.partition import Broadcast, Split
from rolemesh.graph.logical import Edge
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.rank.out_port import OutEdge


@pytest.fixture
def out() -> OutEdge:
    """Of an edge that both ranks of `sink` take every second step from; nothing is sent."""
    endpoint = SimpleNamespace(
        sender=None, site=SimpleNamespace(rank=1, generation=2), generation=lambda role, consumer: 0
    )
    activity = SimpleNamespace(always=lambda op: True, consumed=lambda edge, step, steps: step % 2 == 0)
    ports = SimpleNamespace(endpoint=endpoint, log=None, retention=True, activity=activity, ways=[], steps=100)
    edge = Edge(0, 0, 1, "rows", Split(), Broadcast())
    return OutEdge(cast("Any", ports), edge, "sink", [(cast("Any", None), (0, 1))], hold=1)


def test_who_has_used_it_before_is_named(out: OutEdge) -> None:
    out.asked(0, 0, 5, -1)
    out.void(5)
    with pytest.raises(LogLost, match="sink/0 has used what was made at step 4"):
        out.void(4)


def test_who_says_so_afterwards_is_named(out: OutEdge) -> None:
    out.void(4)
    out.asked(1, 0, 4, -1)
    with pytest.raises(LogLost, match="sink/0 has used what was made at step 4"):
        out.asked(0, 0, 5, -1)


def test_a_step_that_is_not_taken_has_been_used_by_nobody(out: OutEdge) -> None:
    out.asked(0, 0, 4, -1)
    out.void(3)
