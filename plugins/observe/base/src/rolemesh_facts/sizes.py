"""The numbers of ranks of a job's roles over time, from its flow and its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rolemesh.api.observer import Event
from rolemesh_recorder.lines import FlowFile

__all__ = ["sizes_at", "sizes_of"]


def sizes_at(flow: FlowFile, events: Iterable[Event], time: float = float("inf")) -> dict[str, int]:
    """Return the number of ranks of each role at `time`, in seconds since 1970: that of the flow, and of resizes."""
    sizes = dict(flow.sizes)
    for event in events:
        if event.kind == "resized" and event.time <= time:
            sizes.update(sizes_of(event))
    return sizes


def sizes_of(event: Event) -> dict[str, int]:
    """Return the numbers of ranks that an event about a resize names."""
    sizes = event.data.get("sizes")
    return {str(role): size for role, size in sizes.items() if isinstance(size, int)} if isinstance(sizes, dict) else {}
