"""The ranks of a run, their processes and their ends, from its flow and its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.sizes import sizes_of
from rolemesh_recorder.lines import FlowFile, Head

__all__ = ["ends_of", "processes_of", "ranks_of"]


def ranks_of(flow: FlowFile | None, events: Iterable[Event], recorded: Iterable[RankRef]) -> list[RankRef]:
    """Return the ranks of a run that has a record, by role and number.

    They include ranks without a record: such a rank ended before it wrote any. `recorded` are those with a record.
    """
    found = set(recorded)
    sizes = [flow.sizes] if flow is not None else []
    sizes += [sizes_of(event) for event in events if event.kind == "resized"]
    if found:
        found |= {RankRef(role, rank) for each in sizes for role, size in each.items() for rank in range(size)}
    return sorted(found)


def processes_of(events: Iterable[Event]) -> list[Head]:
    """Return the processes of ranks that have come up."""
    found = []
    for event in events:
        data = event.data
        generation, pid = data.get("generation"), data.get("pid")
        if event.kind == "rank_up" and (ref := _ref(data)) and isinstance(generation, int) and isinstance(pid, int):
            found.append(Head(ref.role, ref.rank, generation, pid, str(data.get("node", "")), int(event.time * 1e6)))
    return found


def ends_of(events: Iterable[Event]) -> dict[RankRef, str]:
    """Return how each rank ended: ``done``, ``failed``, or ``stopped`` with its job; "" while it may live."""
    found: dict[RankRef, str] = {}
    for event in events:
        data = event.data
        match event.kind:
            case "rank_up" | "rank_done":
                found |= {ref: "done" if event.kind == "rank_done" else "" for ref in [_ref(data)] if ref}
            case "failure" | "hang":
                found |= {ref: "failed" for ref in [_ref(data.get("failure"))] if ref}
            case "job_ended":
                found = {ref: end or "stopped" for ref, end in found.items()}
    return found


def _ref(data: Any) -> RankRef | None:
    role, rank = (data.get("role"), data.get("rank")) if isinstance(data, dict) else (None, None)
    return RankRef(role, rank) if isinstance(role, str) and isinstance(rank, int) else None
