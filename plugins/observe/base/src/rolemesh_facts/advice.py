"""Rules that look at a run and say what to change, with numbers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.critical import Critical
from rolemesh_facts.edge_states import EdgeState
from rolemesh_facts.recoveries import Story
from rolemesh_facts.row_meaning import FAULTS, Meaning
from rolemesh_facts.series import Points
from rolemesh_facts.time_use import EdgeUse, Use, overall
from rolemesh_recorder.lines import FlowFile

__all__ = ["LATEST", "Advice", "Evidence", "Old", "advice", "old_values"]

IDLE_BEHIND = 0.5
DECIDES = 0.2
"""Share of the critical path from which it is worthwhile to make a role faster."""
SAVING = 0.01
LEAST_US = 20e6
"""Time of a rank from which the share of its snapshots counts: a short run takes its last one whatever the options."""
SLOW = 1.5
RESTARTS = 3
TRUNCATED = 0.2
DEGENERATE = 1 / 3
DISAGREEING = 0.05
"""Mean difference of a token's log-probability, in nats. The same weights in bfloat16 and float32 came to 0.02."""
LATEST = 20
"""Number of latest values of a metric that its advice is about."""
FAULTY = {
    "truncated": (TRUNCATED, "samples are cut off", "raise the limit of tokens, or shorten the task"),
    "failed": (0.1, "samples or their tools fail", "look at them on the page Rows, with the filter failed"),
    "empty": (0.1, "completions are empty", "look at the prompts, and at what ends a completion"),
    "no number": (0.0, "rows have NaN, infinity or nothing as a number", "look at the operator that made the column"),
}
"""Share of rows above which a fault counts, words for it, and a remedy, by names of faults."""

HINDRANCES = {
    "calling": ("waits for answers to its calls", "give the role that it calls more ranks"),
    "saving": ("takes snapshots", "set engine.options.snapshots.every to a longer time, such as 60s"),
    "turn": ("waits for its turn on a slot", "give it a slot of its own"),
    "loading": ("loads for its turn on a slot, or makes room there", "give it a slot of its own"),
    "memory": ("waits for memory", "raise engine.options.retention.max_bytes, or give the node more memory"),
}
"""Words for a role that does not compute, and a remedy, by names of accounts."""


class Advice(NamedTuple):
    """`title` says what is wrong, `why` gives the numbers, `remedy` says what to try. `weight` orders them."""

    title: str
    why: str
    remedy: str
    weight: float = 0.0


class Old(NamedTuple):
    """The values on an edge with ``lag=AtMost(most)`` were `age` steps old in the last step."""

    producer: str
    consumer: str
    param: str
    age: float
    most: int


class Evidence(NamedTuple):
    """Everything that the rules look at. `rows` are the newest kept rows."""

    uses: Mapping[RankRef, Use]
    edges: Sequence[EdgeUse]
    stories: Sequence[Story]
    metrics: Mapping[str, Points]
    old: Sequence[Old] = ()
    rows: Sequence[Meaning] = ()
    critical: Critical | None = None


def advice(evidence: Evidence) -> list[Advice]:
    """Return what the rules found, the weightiest first."""
    found = [each for rule in RULES for each in rule(evidence)]
    return sorted(found, key=lambda each: -each.weight)


def _idle_behind(evidence: Evidence) -> Iterator[Advice]:
    """Look at edges with long waits, unless a faster end of them would not make the job faster.

    Advice about a producer that waits, too, appears only if all producers wait, as in a loop without a lag.
    """
    idle = {edge.consumer for edge in evidence.edges if edge.waiting > IDLE_BEHIND}
    full = {edge.producer for edge in evidence.edges if edge.blocked > IDLE_BEHIND}
    long = (each for each in evidence.edges if each.waiting > IDLE_BEHIND)
    waiting = [each for each in long if _decides(evidence, each.producer, each)]
    for edge in [each for each in waiting if each.producer not in idle] or waiting:
        if edge.producer in full:
            remedy = "the edge itself is slow: send less, or place both roles on one node"
        elif edge.producer in idle:
            remedy = f"{edge.producer} waits, too: look at what it waits for, or allow a lag on an edge of the loop"
        else:
            remedy = _hindrance(evidence, edge.producer) or (
                f"give {edge.producer} more ranks, let {edge.consumer} share its slot, or allow a lag on this edge"
            )
        yield Advice(
            f"{edge.consumer} waits for {edge.producer}",
            f"its ranks waited for `{edge.param}` for {edge.waiting:.0%} of the time",
            remedy,
            edge.waiting,
        )
    for edge in evidence.edges:
        if edge.blocked > IDLE_BEHIND and _decides(evidence, edge.consumer, edge):
            if edge.consumer in idle:
                remedy = f"{edge.consumer} waits, too: the edge, or what {edge.consumer} waits for, is slow"
            else:
                fewer = f"or fewer to {edge.producer}; more credits help only if loads vary"
                remedy = _hindrance(evidence, edge.consumer) or f"give {edge.consumer} more ranks, {fewer}"
            yield Advice(
                f"{edge.producer} waits until {edge.consumer} takes its values",
                f"its ranks waited for credits of `{edge.param}` for {edge.blocked:.0%} of the time",
                remedy,
                edge.blocked,
            )


def _decides(evidence: Evidence, role: str, edge: EdgeUse) -> bool:
    """Return whether a role and the edge decide how long a step takes: by the critical path, if there is one."""
    path = evidence.critical.stations if evidence.critical is not None else ()
    return not path or sum(each.share for each in path if each.role == role or each.edge == edge.edge) >= DECIDES


def _hindrance(evidence: Evidence, role: str) -> str:
    """Return why more ranks of `role` may not help, and what to do; empty if nothing speaks against them."""
    slow = [ref for ref, *_ in _slow_ranks(evidence) if ref.role == role]
    if slow:
        return f"{slow[0]} is slower than the others of its role: look at it first"
    use = overall(use for ref, use in evidence.uses.items() if ref.role == role)
    name, share = next(iter(use.shares.items()), ("", 0.0))
    if name not in HINDRANCES:
        return ""
    what, remedy = HINDRANCES[name]
    return f"{role} {what} for {share:.0%} of the time: {remedy}"


def old_values(flow: FlowFile, states: Sequence[EdgeState]) -> list[Old]:
    """Return the age of values on edges that take the newest one within a limit."""
    found = []
    for state in states:
        edge = flow.edges[state.edge]
        most = re.fullmatch(r"AtMost\((\d+)\)", edge.lag)
        if most is not None and state.staleness is not None:
            roles = flow.ops[edge.src].role, flow.ops[edge.dst].role
            found.append(Old(*roles, edge.param, state.staleness, int(most[1])))
    return found


def _as_old_as_allowed(evidence: Evidence) -> Iterator[Advice]:
    for each in evidence.old:
        if each.age >= each.most > 0:
            yield Advice(
                f"{each.consumer} uses values of {each.producer} that are as old as allowed",
                f"`{each.param}` was {each.age:.3g} steps old in the last step, of at most {each.most}",
                f"give {each.producer} more ranks, or fewer to {each.consumer}; a larger lag makes values older",
                0.5,
            )


def _snapshots(evidence: Evidence) -> Iterator[Advice]:
    for role in sorted({ref.role for ref in evidence.uses}):
        uses = [use for ref, use in evidence.uses.items() if ref.role == role]
        share = overall(uses).share("saving")
        if share > SAVING and max(use.wall for use in uses) >= LEAST_US:
            yield Advice(
                f"snapshots of {role} cost time",
                f"{share:.1%} of its ranks' time",
                "set engine.options.snapshots.every to a longer time, such as 60s, or keep less state in the workload",
                share,
            )


def _slow_ranks(evidence: Evidence) -> Iterator[tuple[RankRef, float, float]]:
    """Yield the ranks that are slower than their role's others: what a step costs them, and the median rank, in µs."""
    roles: dict[str, list[tuple[RankRef, float]]] = {}
    for ref, use in evidence.uses.items():
        if use.steps:
            roles.setdefault(ref.role, []).append((ref, use.spent.get("computing", 0.0) / use.steps))
    for ranks in roles.values():
        ordered = sorted(cost for _, cost in ranks)
        middle = ordered[(len(ordered) - 1) // 2]
        for ref, cost in ranks:
            if len(ranks) > 1 and middle > 0 and cost > SLOW * middle:
                yield ref, cost, middle


def _stragglers(evidence: Evidence) -> Iterator[Advice]:
    for ref, cost, middle in _slow_ranks(evidence):
        yield Advice(
            f"{ref} is slower than the others of its role",
            f"a step costs it {cost / 1e6:.3g} s, the median rank {middle / 1e6:.3g} s",
            "look at its node (`rolemesh status`), or at how rows are divided",
            1 - middle / cost,
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
        ("truncated", *FAULTY["truncated"]),
        ("degenerate_groups", DEGENERATE, "groups teach nothing", "choose easier or harder tasks, or more samples"),
        ("informative_groups", DEGENERATE, "groups teach nothing", "choose easier or harder tasks, or more samples"),
    ):
        steps, values = evidence.metrics.get(name, ([], []))
        if steps:
            latest = values[-LATEST:]
            mean = sum(latest) / len(latest)
            bad = 1 - mean if name == "informative_groups" else mean
            if limit < bad <= 1:
                yield Advice(title, f"`{name}` is {mean:.0%}, the mean of its last {len(latest)} values", remedy, bad)


def _rows(evidence: Evidence) -> Iterator[Advice]:
    """Look at the newest kept rows, for what no metric says."""
    rows = evidence.rows
    for name, (limit, title, remedy) in FAULTY.items():
        found = [row for row in rows if FAULTS[name](row)]
        if found and len(found) > limit * len(rows) and name not in evidence.metrics:
            said = next((row.error or row.odd for row in found if row.error or row.odd), None)
            yield Advice(
                title,
                f"{len(found)} of the newest {len(rows)} kept rows are of this kind{f': {said}' if said else ''}",
                remedy,
                len(found) / len(rows),
            )


def _disagreement(evidence: Evidence) -> Iterator[Advice]:
    """Compare sampler and trainer where they should agree: on tokens of the newest weights."""
    (steps, differences), (_, ages) = (evidence.metrics.get(name, ([], [])) for name in ("logprob_diff", "staleness"))
    if steps and not any(ages[-LATEST:]):
        latest = differences[-LATEST:]
        mean = sum(latest) / len(latest)
        if mean > DISAGREEING:
            yield Advice(
                "sampler and trainer disagree about the same tokens",
                f"`logprob_diff` is {mean:.2g}, the mean of its last {len(latest)} values, with the newest weights",
                "give both roles one dtype (a sampler in bfloat16 does not see small updates), and check that the "
                "sampler loads the weights of each step; or correct it with the loss option importance_sampling_cap",
                min(1.0, mean),
            )


RULES = (_idle_behind, _as_old_as_allowed, _snapshots, _stragglers, _restarts, _samples, _rows, _disagreement)
