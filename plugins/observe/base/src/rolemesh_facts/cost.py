"""The cost of a run: rank-hours and GPU-hours by role, from its plan, its events and the use of its time. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rolemesh.api.observer import Event
from rolemesh_facts.recoveries import Story
from rolemesh_facts.sizes import sizes_of
from rolemesh_facts.time_use import Use

__all__ = ["COST", "Cost", "costs", "gpus_of", "price_of"]

COST = (
    "A role has its ranks from the begin of the job to its end. Ranks on one GPU share it evenly. Lost: from a failure "
    "until the restarted ranks had caught up, whatever the other ranks did. Waiting: for values, consumers, answers, "
    "callers, groups and turns."
)
"""The meaning of the numbers, for a reader."""
_WAITS = frozenset({"calling", "following", "gathering", "idle", "memory", "turn"})


class Cost(NamedTuple):
    """The cost of a role. `lost` and `waiting` are shares of it, from 0 to 1.

    `waiting` is 0 for a role that ended before it had a record, and None if the job has no record.
    """

    role: str
    rank_h: float
    gpu_h: float
    lost: float
    waiting: float | None


def gpus_of(plan: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the number of GPUs of each rank of each role, from the content of ``plan.json``."""
    found = plan.get("ranks")
    ranks = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    held = [(str(each.get("role")), _devices(each)) for each in ranks]
    sharers = Counter(device for _, devices in held for device in devices)
    parts: dict[str, list[float]] = {}
    for role, devices in held:
        parts.setdefault(role, []).append(sum(1 / sharers[device] for device in devices))
    return parts


def _devices(rank: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpus = rank.get("gpus")
    return [(str(rank.get("node")), str(gpu)) for gpu in gpus] if isinstance(gpus, list) else []


def costs(
    sizes: Mapping[str, int],
    plan: Mapping[str, Any],
    events: Iterable[Event],
    stories: Iterable[Story],
    roles: Mapping[str, Use],
    until: float,
) -> list[Cost]:
    """Return the cost of each role up to the time `until`, in seconds since 1970.

    `sizes` are the numbers of ranks at the begin, and `roles` the use of each role's time. A resize counts from the
    time at which it is complete, and `plan` is the last one.
    """
    events = list(events)
    if not events:
        return []
    began = events[0].time
    until = max(began, until)
    lost = _united(
        (max(began, story.began), min(until, _over(story, until))) for story in stories if story.began < until
    )
    gpus = gpus_of(plan)
    spans: list[tuple[float, float, dict[str, int]]] = []
    since, now = began, dict(sizes)
    for event in events:
        if event.kind == "resized" and since <= event.time <= until:
            spans.append((since, event.time, now))
            since, now = event.time, now | sizes_of(event)
    spans.append((since, until, now))
    found = []
    for role in sizes:
        seconds = sum((end - begin) * size.get(role, 0) for begin, end, size in spans)
        in_lost = sum(
            max(0.0, min(end, over) - max(begin, fell)) * size.get(role, 0)
            for begin, end, size in spans
            for fell, over in lost
        )
        held = gpus.get(role, [])
        gpu_s = sum((end - begin) * _of_first(held, size.get(role, 0)) for begin, end, size in spans)
        use = roles.get(role)
        waits = [use.share(name) for name in use.spent if name in _WAITS or name.startswith("edge ")] if use else []
        found.append(
            Cost(
                role,
                seconds / 3600,
                gpu_s / 3600,
                in_lost / seconds if seconds else 0.0,
                math.fsum(waits) if use is not None else None,
            )
        )
    return found


def price_of(found: Iterable[Cost], per_gpu_hour: float) -> float:
    """Return what the roles cost together."""
    return sum(each.gpu_h for each in found) * per_gpu_hour


def _of_first(gpus: Sequence[float], ranks: int) -> float:
    """Return the GPUs of the first `ranks` ranks. Those that are not in the plan any more had as many as the others."""
    return sum(gpus[:ranks]) + max(0, ranks - len(gpus)) * sum(gpus) / len(gpus) if gpus else 0.0


def _over(story: Story, until: float) -> float:
    """Return when what a story lost was regained; `until` if it never was."""
    return story.began + story.regained_s if story.regained_s is not None else until


def _united(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif end > begin:
            found.append((begin, end))
    return found
