"""A job's state from its journal: the decisions of its masters up to the last written transition.

The journal does not hold the present activity of agents and ranks: they report it to the master with the newest epoch.
A long journal keeps only its newest events; a `KeptJob` replaces those before.
"""

from __future__ import annotations

from collections.abc import Iterable

from rolemesh.api.observer import Event
from rolemesh_durable.protocol.master.apply import apply
from rolemesh_durable.protocol.master.clocks import by_another_clock
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.transitions import read

__all__ = ["follow", "replay"]


def follow(state: JobState, event: Event) -> None:
    """Apply the journal's next event."""
    if (happened := read(event.kind, event.data)) is not None:
        apply(state, happened, event.time)


def replay(state: JobState, journal: Iterable[Event], clock: str, now: float, wall: float) -> None:
    """Apply the whole `journal` to the state of a job before its first event, for a master that begins then."""
    for event in journal:
        follow(state, event)
    by_another_clock(state, clock, now, wall)
