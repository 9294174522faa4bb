"""The first page of a run: does it learn, how far and how fast is it, what waits, what failed, what needs attention?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rolemesh_facts.cost import COST
from rolemesh_facts.critical import Critical, Station
from rolemesh_facts.curves import Curve, curve_of
from rolemesh_facts.overview import headlines, largest_fall, pace_of, trend
from rolemesh_facts.row_meaning import REWARDS
from rolemesh_facts.run import RunFacts
from rolemesh_recorder.reading import recorded_ranks
from rolemesh_view.stories import deaths, event_text, told_of
from rolemesh_view.text import number
from rolemesh_view.viewed import Viewed

__all__ = ["bottleneck", "goal_of", "misses", "overview"]

MOST_ADVICE, MOST_FAILURES = 3, 3
"""Lines of the page about what needs attention, and about what failed."""
MOST_STATIONS, LEAST = 3, 0.05
"""Number of stations of the critical path in a sentence, and the smallest share of one."""
STATIONS = {
    "edge": "the edge {name}", "grant": "the master, before further steps of {role}", "memory": "memory of {role}",
    "call": "answers to calls of {role}", "turn": "the turn of {role}", "group": "the group of {role}",
    "snapshot": "snapshots of {role}",
}  # fmt: skip
"""Kinds of stations of the critical path in a sentence; others have their name."""
WORDS = {
    "rises": "rises from {} to {}",
    "falls": "falls from {} to {}",
    "stays": "from {} to {}, no change beyond its noise",
}


def goal_of(facts: RunFacts) -> tuple[str, float] | None:
    """Return the name and the latest value of the metric that tells whether a run learns; None without one."""
    found = headlines(facts.metric_names())
    values = facts.points(found[0])[1] if found else []
    return (found[0], values[-1]) if values else None


def overview(run: Viewed, query: Any) -> dict[str, Any]:
    """Return the curves that tell whether the run learns, its pace, and sentences about waits and failures."""
    facts, live = run.facts, run.live()
    summary, look = facts.summary(), run.look_soon()
    events = facts.events()
    told = told_of(facts.stories(), events, str(facts.result().get("status", "")))
    failed = [each for each in told if each.story.failures]
    names, lengths = headlines(facts.metric_names()), facts.lengths()
    kept = next(iter(facts.rows()), None) is not None
    return {
        "curves": [_shown(facts, name, lengths) for name in names],
        "others": len(facts.metric_names()) - len(names),
        "pace": pace_of(facts.paced(), summary, time.time() if live else None),
        "beginnings": run.beginnings(), "under_way": run.under_way(),
        "costs": run.costs_soon(), "cost_meaning": COST,
        **run.reading(look),
        "bottleneck": bottleneck(look.critical if look else None), "recorded": bool(recorded_ranks(run.path)),
        "advice": list(look.advice[:MOST_ADVICE]) if look else [],
        "failures": failed[-MOST_FAILURES:][::-1], "failed": len(failed),
        "recoveries": sum(1 for each in failed if each.story.number),
        "kept": kept, "fall": largest_fall(facts.points(REWARDS[0])) if kept else None,
        "deaths": [event_text(each) for each in deaths(events)][-MOST_FAILURES:],
    }  # fmt: skip


def _shown(facts: RunFacts, name: str, lengths: Mapping[int, int]) -> tuple[str, str, Curve]:
    """Return a metric's name, what it does in words, and its curve."""
    points = facts.points(name)
    found, until = trend(points, lengths), max(lengths, default=-1)
    few = ", then ".join(map(number, points[1]))  # of so few values, nobody knows the noise
    said = WORDS[found.word].format(number(found.first), number(found.last)) if found else few
    said += f"; no value after step {points[0][-1]}" if misses(points[0], until) else ""
    return name, said, curve_of(points, 620, 230, until=until)


def misses(steps: Sequence[int], until: int) -> bool:
    """Return whether a metric with values at `steps` has none up to the step `until`, though one was due."""
    usual = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 0.0
    return bool(usual) and until - steps[-1] > 1.5 * usual


def bottleneck(critical: Critical | None) -> str:
    """Return in a sentence what the job waits for most; "" without a record."""
    stations: Sequence[Station] = critical.stations if critical else ()
    if not stations:
        return ""
    told = [
        f"{STATIONS.get(each.kind, '{name}').format(name=each.name, role=each.role)} ({each.share:.0%})"
        for each in stations[:MOST_STATIONS]
        if each.share >= LEAST
    ]
    return f"A step waits most for {', then '.join(told)}: shares of the critical path." if told else ""
