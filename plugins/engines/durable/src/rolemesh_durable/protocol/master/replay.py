"""A job's state from its journal: what its masters have decided, up to the last transition that was written.

What agents and ranks do now is not in the journal: they report it to whoever speaks with the newest epoch. Of a long
journal only the newest events are kept; a `KeptJob` stands for those before.
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
    """The journal's next event."""
    if (happened := read(event.kind, event.data)) is not None:
        apply(state, happened, event.time)


def replay(state: JobState, journal: Iterable[Event], clock: str, now: float, wall: float) -> None:
    """Bring a job of which nothing has happened to where the whole `journal` ends, for a master that begins then."""
    for event in journal:
        follow(state, event)
    by_another_clock(state, clock, now, wall)
