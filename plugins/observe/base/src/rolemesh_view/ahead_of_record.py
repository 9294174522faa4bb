"""Ranks that start or run their setup, and whether ranks should write their records now: from a run's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.labels import meaning
from rolemesh_facts.sizes import sizes_of

__all__ = ["Beginning", "beginnings", "phases", "should_write"]

WRITING: Final = {"job_running": True, "recovered": True, "resized": True}
SILENT: Final = dict.fromkeys(("recovery_planned", "recovery_launched", "job_started", "rank_done", "job_ended"), False)
"""Events after which ranks may be without a record for long: they set up, restore their state, or have ended."""


class Beginning(NamedTuple):
    """A number of ranks of a role that start or run their setup. `since`: the first of them, in seconds since 1970."""

    role: str
    ranks: int
    phase: str
    since: float


def beginnings(events: Iterable[Event], sizes: Mapping[str, int]) -> list[Beginning]:
    """Return what the ranks of `phases` do, by role."""
    groups: dict[tuple[str, str], list[float]] = {}
    for ref, (phase, since) in phases(events, sizes).items():
        groups.setdefault((ref.role, phase), []).append(since)
    return [Beginning(role, len(times), meaning(phase), min(times)) for (role, phase), times in sorted(groups.items())]


def phases(events: Iterable[Event], sizes: Mapping[str, int]) -> dict[RankRef, tuple[str, float]]:
    """Return ``starting`` or ``setup`` and its begin, in seconds since 1970, for ranks whose process has no record yet.

    `sizes`: ranks by role at the start. The function skips malformed events.
    """
    found: dict[RankRef, tuple[str, float]] = {}
    for event in events:
        data = event.data
        if event.kind == "job_started":
            found = {RankRef(role, rank): ("starting", event.time) for role in sizes for rank in range(sizes[role])}
        elif event.kind == "recovery_launched" and isinstance(ranks := data.get("ranks"), list):
            found |= {ref: ("starting", event.time) for each in ranks if (ref := _ref(each)) is not None}
        elif event.kind == "resized":
            sizes = {**sizes, **sizes_of(event)}
            found = {ref: phase for ref, phase in found.items() if ref.rank < sizes.get(ref.role, ref.rank + 1)}
        elif event.kind in ("rank_up", "rank_ready", "rank_done") and (ref := _ref(data)) is not None:
            found.pop(ref, None)
            if event.kind == "rank_up":
                found[ref] = "setup", event.time
    return found


def should_write(events: Sequence[Event]) -> bool:
    """Return whether all ranks are past their setup and none has ended, so that each of them writes its record."""
    known = WRITING | SILENT
    return next((known[event.kind] for event in reversed(events) if event.kind in known), False)


def _ref(data: Any) -> RankRef | None:
    role, rank = (data.get("role"), data.get("rank")) if isinstance(data, dict) else (None, None)
    return RankRef(role, rank) if isinstance(role, str) and isinstance(rank, int) else None
