"""Rules that look at a run and say what to change, with numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.recoveries import Story
from rolemesh_facts.series import Points
from rolemesh_facts.time_use import EdgeUse, Use, overall

__all__ = ["Advice", "Evidence", "advice"]

IDLE_BEHIND = 0.5
SAVING = 0.01
SLOW = 1.5
RESTARTS = 3
TRUNCATED = 0.2
DEGENERATE = 1 / 3
LATEST = 20


class Advice(NamedTuple):
    """`title` says what is wrong, `why` gives the numbers, `remedy` says what to try. `weight` orders them."""

    title: str
    why: str
    remedy: str
    weight: float = 0.0


class Evidence(NamedTuple):
    """Everything that the rules look at."""

    uses: Mapping[RankRef, Use]
    edges: Sequence[EdgeUse]
    stories: Sequence[Story]
    metrics: Mapping[str, Points]


def advice(evidence: Evidence) -> list[Advice]:
    """Return what the rules found, the weightiest first."""
    found = [each for rule in RULES for each in rule(evidence)]
    return sorted(found, key=lambda each: -each.weight)


def _idle_behind(evidence: Evidence) -> Iterator[Advice]:
    for edge in evidence.edges:
        if edge.waiting > IDLE_BEHIND:
            yield Advice(
                f"{edge.consumer} waits for {edge.producer}",
                f"its ranks waited for `{edge.param}` for {edge.waiting:.0%} of the time",
                f"give {edge.producer} more ranks, let {edge.consumer} share its slot, or allow a lag on this edge",
                edge.waiting,
            )
        if edge.blocked > IDLE_BEHIND:
            yield Advice(
                f"{edge.producer} waits until {edge.consumer} takes its values",
                f"its ranks waited for credits of `{edge.param}` for {edge.blocked:.0%} of the time",
                f"give {edge.consumer} more ranks, or fewer to {edge.producer}; more credits help only if loads vary",
                edge.blocked,
            )


def _snapshots(evidence: Evidence) -> Iterator[Advice]:
    for role in sorted({ref.role for ref in evidence.uses}):
        share = overall(use for ref, use in evidence.uses.items() if ref.role == role).share("saving")
        if share > SAVING:
            yield Advice(
                f"snapshots of {role} cost time",
                f"{share:.1%} of its ranks' time",
                "raise engine.options.snapshots.every_s, or keep less state in the workload",
                share,
            )


def _stragglers(evidence: Evidence) -> Iterator[Advice]:
    roles: dict[str, list[tuple[RankRef, float]]] = {}
    for ref, use in evidence.uses.items():
        if use.steps:
            roles.setdefault(ref.role, []).append((ref, use.spent.get("computing", 0.0) / use.steps))
    for ranks in roles.values():
        ordered = sorted(cost for _, cost in ranks)
        middle = ordered[(len(ordered) - 1) // 2]
        for ref, cost in ranks:
            if len(ranks) > 1 and middle > 0 and cost > SLOW * middle:
                yield Advice(
                    f"{ref} is slower than the others of its role",
                    f"a step costs it {cost / 1e6:.3g} s, the median rank {middle / 1e6:.3g} s",
                    "look at its node (`rolemesh status`), or at how rows are divided",
                    cost / middle / 10,
                )


def _restarts(evidence: Evidence) -> Iterator[Advice]:
    counts: dict[str, int] = {}
    for story in evidence.stories:
        for name in story.restarted if story.failures else ():  # a resize is no failure
            counts[name] = counts.get(name, 0) + 1
    for name, times in counts.items():
        if times >= RESTARTS:
            yield Advice(
                f"{name} was restarted {times} times",
                "the page of its failures has their causes",
                "look at the log of the first failure: later ones often follow from it",
                times / 3,
            )


def _samples(evidence: Evidence) -> Iterator[Advice]:
    for name, limit, title, remedy in (
        ("truncated", TRUNCATED, "samples are cut off", "raise the limit of tokens, or shorten the task"),
        ("degenerate_groups", DEGENERATE, "groups teach nothing", "choose easier or harder tasks, or more samples"),
        ("informative_groups", DEGENERATE, "groups teach nothing", "choose easier or harder tasks, or more samples"),
    ):
        steps, values = evidence.metrics.get(name, ([], []))
        if steps:
            latest = values[-LATEST:]
            mean = sum(latest) / len(latest)
            bad = 1 - mean if name == "informative_groups" else mean
            if limit < bad <= 1:
                yield Advice(title, f"`{name}` is {mean:.0%} in the last {len(latest)} lines", remedy, bad)


RULES = (_idle_behind, _snapshots, _stragglers, _restarts, _samples)
