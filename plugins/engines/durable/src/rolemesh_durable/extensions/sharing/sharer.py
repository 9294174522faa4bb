"""The parts of a rank with which it shares rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rolemesh.api.workload import RankContext
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.event_loop import Tasks

__all__ = ["Sharer"]


class Sharer(NamedTuple):
    """A rank that shares rows: its context, its ports, the tasks of its operators, and `Rank.record`."""

    ctx: RankContext
    ports: Ports[Any]
    tasks: Tasks
    record: Callable[[Mapping[str, Any]], None]
