"""Waits have names that are true in the flow in which they occur."""

from __future__ import annotations

import pytest

from rolemesh.api.observer import RankStatus
from rolemesh_console.text import activity
from rolemesh_facts.labels import phase_label, use_label
from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp

ALL, AHEAD, MASTER = "waits for other ranks or the master", "ahead of its consumers", "waits for the master"


def flow(*pairs: tuple[str, ...], ranks: int = 1, service: str = "", every: int = 1) -> FlowFile:
    """A flow with an operator per role. A pair may have the lag of its edge as a third part."""
    roles = list(dict.fromkeys(role for pair in pairs for role in pair[:2]))
    ops = tuple(FlowOp(at, role, f"{role}.run", every=every if at else 1) for at, role in enumerate(roles))
    edges = tuple(
        FlowEdge(at, roles.index(src), roles.index(dst), f"v{at}", "split", *lag)
        for at, (src, dst, *lag) in enumerate(pairs)
    )
    return FlowFile("f", ops, edges, dict.fromkeys([*roles, *filter(None, [service])], ranks), {})


@pytest.mark.parametrize(
    ("pairs", "ranks", "said"),
    [
        ([("data", "trainer")], 1, {"data": AHEAD, "trainer": MASTER}),
        ([("data", "trainer")], 2, {"data": AHEAD, "trainer": ALL}),
        ([("a", "b"), ("b", "c")], 1, {"a": AHEAD, "b": AHEAD, "c": MASTER}),
        # a loop: rows of this step, and weights of the one before
        ([("d", "r"), ("r", "t"), ("t", "r", "1")], 1, {"d": AHEAD, "r": AHEAD, "t": MASTER}),
        # with a lag everywhere, each may be a step ahead of the others
        ([("d", "r"), ("r", "t", "AtMost(1)"), ("t", "r", "1")], 1, {"d": AHEAD, "r": AHEAD, "t": ALL}),
        # two ends: each may be ahead of the other
        ([("a", "b"), ("a", "c")], 1, {"a": AHEAD, "b": ALL, "c": ALL}),
        # the slow one may be the consumer or the other branch
        ([("a", "b"), ("c", "d")], 1, {"a": ALL, "d": ALL}),
        ([("one", "one")], 1, {"one": MASTER}),
    ],
)
def test_a_role_that_may_not_run_further_is_ahead_only_of_roles_that_can_be_behind(
    pairs: list[tuple[str, ...]], ranks: int, said: dict[str, str]
) -> None:
    found = flow(*pairs, ranks=ranks, service="tools")
    assert {role: use_label(found, role, "idle") for role in said} == said
    assert {role: phase_label(found, role, "idle") for role in said} == said
    assert use_label(None, "any", "idle") == ALL


def test_a_role_that_seldom_takes_values_may_be_ahead_of_its_producer() -> None:
    assert use_label(flow(("trainer", "evaluate"), every=10), "evaluate", "idle") == ALL


def test_a_wait_at_an_edge_within_a_role_names_the_end_that_waits() -> None:
    found = flow(("one", "one"))
    assert phase_label(found, "one", "waiting", edge=0) == "waits for v0 of one.run"
    assert phase_label(found, "one", "blocked", edge=0) == "waits until one.run takes v0"


def test_a_rank_that_is_blocked_without_an_edge_waits_for_memory() -> None:
    assert phase_label(flow(("a", "b")), "a", "blocked") == "waits for memory"

    def words(doing: str, phase: str = "blocked") -> str:
        return activity(RankStatus("a", 0, "node", 1, "running", 3, phase, doing)).plain

    assert [words("b.run"), words("run"), words("")] == ["blocked by b.run", "waiting for memory", "waiting for memory"]
    assert words("", "stopped") == "stopped by a signal"
    assert words("run", "saving") == "saving a snapshot"
