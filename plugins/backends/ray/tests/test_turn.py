"""Places in the queue on a real Ray, without jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from tests.waiting import HANG_S, until

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import NoOptions
from rolemesh.placement import PlacementPlan, PlacementRequest, RoleRequest
from rolemesh_pack import PackScheduler
from rolemesh_ray import queue
from rolemesh_ray.names import reservation_name
from rolemesh_ray.queue import Living
from rolemesh_ray.turn import RayTurn, free_room, places

pytestmark = pytest.mark.ray

PACK = PackScheduler(NoOptions())


def ranks(number: int) -> Callable[[ClusterView], PlacementPlan]:
    """The plan of a job with `number` ranks of one CPU each."""
    request = PlacementRequest((RoleRequest("a", number),))
    return lambda cluster: PACK.place(request, cluster, PlacementPlan())


@pytest.fixture
def join(ray_cluster: Any) -> Iterator[Callable[..., RayTurn]]:
    """Let a job join the queue."""
    joined: list[RayTurn] = []

    def turn(job: str, cpus: int, priority: int = 0) -> RayTurn:
        joined.append(RayTurn(job, priority, ranks(cpus)))
        return joined[-1]

    yield turn
    for each in joined:
        each.leave()
    assert places() == []


def cpus() -> int:
    return int(ray.cluster_resources()["CPU"])


def test_a_job_that_starts_keeps_its_room_before_it_is_reserved(join: Callable[..., RayTurn]) -> None:
    first, second = join("first", cpus()), join("second", 1)
    assert "job first of" in str(second.look())
    assert not isinstance(first.look(), str)
    told = second.look()
    assert isinstance(told, str)
    assert f"priority 0, starts with cpu {cpus()}" in told
    assert sum(node.cpu for node in free_room(Living()).nodes) == 0
    first.leave()
    assert not isinstance(second.look(), str)


def test_a_job_that_comes_after_others_have_started_counts_as_later(join: Callable[..., RayTurn]) -> None:
    low = join("low", cpus())
    for _ in range(3):
        high = join("high", 1, 1)
        assert not isinstance(high.look(), str)
        high.leave()
    assert high._mine.number >= low._mine.number + 2, "two have started before it"


def test_a_reservation_counts_as_soon_as_it_is_made_and_names_its_job(join: Callable[..., RayTurn]) -> None:
    turn = join("second", cpus())
    group = ray.util.placement_group([{"CPU": 1.0}], name=reservation_name("holder", 0))
    try:
        assert group.wait(HANG_S)
        told = str(turn.look())
        assert "the cluster is short of 1 cpu; job holder has cpu 1" in told
    finally:
        ray.util.remove_placement_group(group)


def test_one_of_the_drivers_that_decide_at_the_same_time_starts(join: Callable[..., RayTurn]) -> None:
    for _ in range(5):
        turns = [join(f"job-{number}", cpus()) for number in range(4)]
        begin, found = threading.Barrier(len(turns)), list[object]()

        def look(turn: RayTurn, begin: threading.Barrier = begin, found: list[object] = found) -> None:
            begin.wait(HANG_S)
            found.append(turn.look())

        threads = [threading.Thread(target=look, args=(turn,)) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(not isinstance(each, str) for each in found) <= 1
        waiting = [turn for turn in turns if isinstance(turn.look(), str)]
        assert len(waiting) >= len(turns) - 1
        for turn in turns:
            turn.leave()


def test_a_dead_driver_blocks_nobody(join: Callable[..., RayTurn], monkeypatch: pytest.MonkeyPatch) -> None:
    dead, last = join("dead", cpus()), join("last", cpus())
    assert "job dead of" in str(last.look())
    dead._left.set()  # it renews its entry no more, as if it were killed
    monkeypatch.setattr(queue, "STALE_S", 0.0)
    until(lambda: not isinstance(last.look(), str), "the next one starts")
    assert [place.job for place in places()] == ["last"]
