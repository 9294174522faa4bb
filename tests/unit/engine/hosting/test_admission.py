"""The order of the queue, and a job that waits for room: its messages and its behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.placement.nodes import parse_nodes
from rolemesh_durable.hosting.admission import find_room
from rolemesh_pack import PackScheduler
from rolemesh_ray.queue import STALE_S, Living, QueuePlace, ahead


def place(job: str, priority: int = 0, since: float = 0.0, beat: int = 1) -> QueuePlace:
    return QueuePlace(job, priority, since, beat, job)


def names(places: Sequence[QueuePlace]) -> list[str]:
    return [place.job for place in places]


def test_the_highest_priority_goes_first_then_the_earliest_job() -> None:
    line = [place("late", 1, 9.0), place("early", 1, 1.0), place("low", 0, 0.0), place("high", 2, 50.0)]
    assert names(ahead(line, place("low", 0, 0.0))) == ["high", "early", "late"]
    assert ahead(line, place("high", 2, 50.0)) == []


def test_a_job_that_does_not_renew_its_place_loses_it_for_any_clock() -> None:
    living = Living()
    assert names(living.among([place("a", since=1e12), place("b", since=-1e12)], 100.0)) == ["a", "b"]
    later = [place("a", since=1e12, beat=2), place("b", since=-1e12)]
    assert names(living.among(later, 100.0 + STALE_S)) == ["a", "b"]
    assert names(living.among(later, 100.0 + 1.5 * STALE_S)) == ["a"]
    assert names(living.among([place("b", since=-1e12, beat=2)], 100.0 + 9 * STALE_S)) == ["b"]


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=6))
def test_exactly_one_is_first(line: list[tuple[int, int]]) -> None:
    places = [place(str(i), priority, float(since)) for i, (priority, since) in enumerate(line)]
    assert sum(not ahead(places, mine) for mine in places) == 1


class Scripted:
    """A backend on which room becomes free, and others leave the line, look by look."""

    def __init__(self, free: list[str], before: list[list[QueuePlace]]) -> None:
        self._free, self._before = free, before

    def free(self) -> ClusterView:
        return parse_nodes(self._free.pop(0) if len(self._free) > 1 else self._free[0])

    def others(self) -> list[str]:
        return ["other"]

    def queue(self, job: str, priority: int) -> Scripted:
        return self

    def ahead(self) -> list[QueuePlace]:
        return self._before.pop(0) if len(self._before) > 1 else self._before[0]


def wait(backend: Scripted, wait_s: float = 60.0) -> tuple[PlacementPlan, list[str]]:
    request, said = PlacementRequest((RoleRequest("a", 2),)), list[str]()
    pack = PackScheduler(NoOptions())
    plan, _ = find_room(
        backend, "mine", 0, lambda free: pack.place(request, free, PlacementPlan()), wait_s, "job.yaml", said.append
    )
    return plan, said


def test_a_job_starts_at_once_where_there_is_room_and_nobody_before_it() -> None:
    plan, said = wait(Scripted(["(cpu=2)"], [[]]))
    assert len(plan.assignments) == 2
    assert said == []


def test_it_waits_for_its_turn_and_then_for_room_and_says_so_once_each() -> None:
    plan, said = wait(Scripted(["(cpu=2)", "(cpu=1)", "(cpu=1)", "(cpu=2)"], [[place("first", 3)], []]))
    assert len(plan.assignments) == 2
    assert said == [
        "waiting for room: job first, priority 3, is before this one",
        "waiting for room: a/1: needs cpu 1, the most that is free on a node is 0 (node-0); "
        "the cluster is short of 1 cpu; jobs here: other",
    ]


def test_it_gives_up_after_its_time() -> None:
    with pytest.raises(PlacementError, match=r"no room after 0\.2 s: a/1: needs cpu 1") as error:
        wait(Scripted(["(cpu=1)"], [[]]), 0.2)
    assert error.value.exit_code == 2
    assert "room_wait_s" in str(error.value)
