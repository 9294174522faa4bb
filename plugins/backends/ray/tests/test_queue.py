"""The order of the queue, what each job may take, and that no job waits for one that came after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import NoOptions
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pack import PackScheduler
from rolemesh_ray import queue
from rolemesh_ray.queue import LATER_JOBS, STALE_S, Living, QueuePlace, ahead, aim, least, left, less, reason, spare

PACK = PackScheduler(NoOptions())


def place(job: str, priority: int = 0, number: int = 0, beat: int = 1, **more: object) -> QueuePlace:
    return QueuePlace(job, "alice", priority, number, job, beat, **more)  # type: ignore[arg-type]


def names(places: Sequence[QueuePlace]) -> list[str]:
    return [place.job for place in places]


def planned(ranks: int, cpu: float, cluster: ClusterView) -> PlacementPlan:
    return PACK.place(PlacementRequest((RoleRequest("a", ranks, cpu=cpu),)), cluster, PlacementPlan())


def test_the_highest_priority_goes_first_then_the_earliest_job() -> None:
    line = [place("late", 1, 9), place("early", 1, 1), place("low", 0, 0), place("high", 2, 50)]
    assert names(ahead(line, line[2])) == ["high", "early", "late"]
    assert ahead(line, line[3]) == []
    assert names(ahead(line, None)) == ["high", "early", "late", "low"]


def test_a_point_of_priority_is_worth_a_number_of_later_jobs() -> None:
    low, high = place("low", 0, 5), place("high", 2, 5 + 2 * LATER_JOBS - 1)
    assert names(ahead([low, high], None)) == ["high", "low"]
    assert names(ahead([low, place("later", 2, 5 + 2 * LATER_JOBS)], None)) == ["low", "later"]


def test_a_job_that_starts_is_before_all_others() -> None:
    line = [place("starting", -5, 9, starts=True), place("high", 2, 50)]
    assert names(ahead(line, line[1])) == ["starting"]


def test_a_job_that_does_not_renew_its_place_loses_it() -> None:
    living = Living()
    assert names(living.among([place("a"), place("b")], 100.0)) == ["a", "b"]
    assert names(living.among([place("a", beat=2), place("b")], 100.0 + STALE_S)) == ["a", "b"]
    assert names(living.among([place("a", beat=2), place("b")], 100.0 + 1.5 * STALE_S)) == ["a"]
    assert names(living.among([place("b", beat=2)], 100.0 + 9 * STALE_S)) == ["b"]


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=6))
def test_exactly_one_is_first(line: list[tuple[int, int]]) -> None:
    places = [place(str(i), priority, number) for i, (priority, number) in enumerate(line)]
    assert sum(not ahead(places, mine) for mine in places) == 1


def test_a_job_gets_what_those_before_it_leave() -> None:
    free = parse_nodes("(cpu=4,gpu=2,memory_gb=8),(cpu=4)")
    large = place("large", number=1, wanted={"node-0": {"cpu": 3.0, "gpu": 1.5, "memory_gb": 9.0}})
    first, second = left(free, [large], place("small", number=2)).nodes
    assert (first.cpu, first.gpu, first.custom["memory_gb"], second.cpu) == (1.0, 0, 0.0, 4.0)
    assert left(free, [large], large) == free
    assert left(free, [large], place("more", 1, 3)) == free
    assert left(free, [large], None) == left(free, [large], place("small", number=2))


def test_a_job_that_runs_grows_by_what_waiting_jobs_leave_and_keeps_its_own() -> None:
    free, usable = parse_nodes("(cpu=3,gpu=1),(cpu=1)"), parse_nodes("(cpu=5,gpu=2),(cpu=4)")
    waiting = place("waiting", wanted={"node-0": {"cpu": 8.0, "gpu": 2.0}})
    found = spare(usable, free, [waiting])
    assert [(node.cpu, node.gpu) for node in found.nodes] == [(2.0, 1), (4.0, 0)]
    assert spare(usable, free, []) == usable


def test_a_job_keeps_its_place_until_a_node_is_gone() -> None:
    nodes, first, second = parse_nodes("(cpu=4),(cpu=4)"), {"node-0": {"cpu": 3.0}}, {"node-1": {"cpu": 3.0}}

    def aimed(wanted: dict[str, dict[str, float]], nodes: ClusterView, *before: QueuePlace) -> list[str]:
        return list(aim(wanted, before, nodes, lambda cluster: planned(1, 3.0, cluster)))

    assert aimed({}, nodes) == ["node-0"]
    assert aimed({}, nodes, place("a", wanted=first)) == ["node-1"]
    assert aimed({}, nodes, place("a", wanted=first | second)) == ["node-0"], "it waits for that job anyway"
    assert aimed(second, nodes, place("a", wanted=second)) == ["node-1"]
    assert aimed(second, parse_nodes("(cpu=4)")) == ["node-0"]


def test_the_smaller_amount_of_two_views_counts() -> None:
    found = least(parse_nodes("(cpu=4,gpu=1),(cpu=1)"), parse_nodes("(cpu=2,gpu=2)"))
    assert [(node.id, node.cpu, node.gpu) for node in found.nodes] == [("node-0", 2.0, 1)]


def test_a_reason_names_the_resources_who_has_them_and_who_is_before() -> None:
    plan = planned(2, 2.0, parse_nodes("(cpu=3)"))
    before = [place("big", 3, wanted={"n": {"cpu": 2.5, "gpu": 0.0}, "m": {"cpu": 1.0}}), place("now", starts=True)]
    told = reason(plan, before, {f"j{n}": {"cpu": 1.0} for n in range(5)})
    assert told == (
        "a/1: needs cpu 2, the most that is free on a node is 1 (node-0); the cluster is short of 1 cpu; "
        "job j0 has cpu 1; job j1 has cpu 1; job j2 has cpu 1; and 2 more; "
        "job big of alice, priority 3, is before this one and waits for cpu 3.5; "
        "job now of alice, priority 0, starts with nothing"
    )
    assert reason(plan, [], {}).endswith("short of 1 cpu; other work on this Ray has the rest")


@dataclass
class Simulated:
    """A job of the simulation: its ranks with their CPUs, its priority, the time at which it comes and its duration."""

    name: str
    ranks: int
    cpu: float
    priority: int
    comes: int
    lasts: int
    place: QueuePlace | None = None
    holds: dict[str, dict[str, float]] = field(default_factory=dict)
    began: int = -1
    not_before: set[str] = field(default_factory=set)
    """Jobs that ran when it came, and those that were ever before it in the queue."""

    def plan(self, cluster: ClusterView) -> PlacementPlan:
        return planned(self.ranks, self.cpu, cluster)

    def ends(self) -> int:
        return self.began + self.lasts


def simulate(jobs: Sequence[Simulated], nodes: ClusterView) -> None:
    """Let the jobs come, wait, run and end, as `RayTurn` decides."""
    now = 0
    while any(job.began < 0 for job in jobs):
        running = [job for job in jobs if job.began >= 0 and now < job.ends()]
        for number, job in enumerate(jobs):
            if job.comes == now:
                queue = [each.place for each in jobs if each.place is not None and each.began < 0]
                job.place = place(job.name, job.priority, number)
                wanted = aim({}, ahead(queue, job.place), nodes, job.plan)
                job.place = place(job.name, job.priority, number, wanted=wanted)
                job.not_before.update(each.name for each in running)
        waiting = [job for job in jobs if job.place is not None and job.began < 0]
        for job in waiting:
            job.not_before.update(names(ahead([each.place for each in waiting if each.place], job.place)))
        for job in jobs:
            if job.place is None or job.began >= 0:
                continue
            queue = [each.place for each in jobs if each.place is not None and each.began < 0]
            before = ahead(queue, job.place)
            wanted = aim(job.place.wanted, before, nodes, job.plan)
            job.place = place(job.name, job.priority, job.place.number, wanted=wanted)
            free = nodes
            for each in jobs:
                if each.began >= 0 and now < each.ends():
                    free = less(free, each.holds)
            plan = job.plan(left(free, queue, job.place))
            if not plan.unplaced:
                job.began, job.holds = now, plan.bundles()
        now += 1
        assert now < 1000, "a job waits for ever"


JOBS = st.lists(
    st.tuples(
        st.integers(1, 4), st.sampled_from([1.0, 2.0, 4.0]), st.integers(0, 1), st.integers(0, 9), st.integers(1, 9)
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(JOBS)
def test_a_job_waits_for_no_job_that_came_after_it(given: list[tuple[int, float, int, int, int]]) -> None:
    nodes = parse_nodes("(cpu=4),(cpu=4),(cpu=8)")
    jobs = [Simulated(str(n), *each) for n, each in enumerate(given)]
    jobs = sorted((job for job in jobs if not planned(job.ranks, job.cpu, nodes).unplaced), key=lambda job: job.comes)
    simulate(jobs, nodes)
    ends: Mapping[str, int] = {job.name: job.ends() for job in jobs}
    for job in jobs:
        assert job.began <= max([job.comes, *(ends[name] for name in job.not_before)]), job
        taken = [each.holds for each in jobs if each.began <= job.began < each.ends()]
        for node in nodes.nodes:
            assert sum(of.get(node.id, {}).get("cpu", 0.0) for of in taken) <= node.cpu


def test_a_small_job_need_not_wait_for_a_large_one_elsewhere_and_a_stream_of_them_does_not_hold_it_up() -> None:
    nodes = parse_nodes("(cpu=4),(cpu=8)")
    stream = [Simulated(f"s{n}", 1, 2.0, 0, n, 4) for n in range(20)]
    large = Simulated("large", 1, 8.0, 0, 3, 5)
    jobs = sorted([*stream, large], key=lambda job: job.comes)
    simulate(jobs, nodes)
    assert large.began <= 7, "those that ran when it came have ended"
    assert any(job.comes > 3 and job.began < large.began for job in stream), (
        "small ones run on the other node meanwhile"
    )


def test_a_stream_of_jobs_with_a_higher_priority_does_not_hold_a_job_up_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "LATER_JOBS", 8)
    nodes = parse_nodes("(cpu=4)")
    stream = [Simulated(f"s{n}", 1, 4.0, 1, n, 2) for n in range(20)]
    low = Simulated("low", 1, 4.0, 0, 1, 1)
    simulate(sorted([*stream, low], key=lambda job: job.comes), nodes)
    assert 8 <= sum(job.began < low.began for job in stream) <= 9
