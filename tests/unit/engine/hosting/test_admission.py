"""A job that waits for room: its messages and its behaviour."""

from __future__ import annotations

import pytest

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PlacementError
from rolemesh.placement import PlacementPlan
from rolemesh.placement.nodes import parse_nodes
from rolemesh_durable.hosting.admission import find_room

ROOM = PlacementPlan(), parse_nodes("(cpu=2)")


class Scripted:
    """A place in a queue with one answer for each look; the last one is for all further looks."""

    def __init__(self, *answers: tuple[PlacementPlan, ClusterView] | str) -> None:
        self._answers = list(answers)

    def look(self) -> tuple[PlacementPlan, ClusterView] | str:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_job_starts_at_once_where_there_is_room() -> None:
    said = list[str]()
    assert find_room(Scripted(ROOM), 60.0, "job.yaml", said.append) is ROOM
    assert said == []


def test_a_job_tells_each_reason_once() -> None:
    said = list[str]()
    assert find_room(Scripted("one", "one", "two", ROOM), 60.0, "job.yaml", said.append) is ROOM
    assert said == ["one", "two"]


def test_it_gives_up_after_its_time() -> None:
    with pytest.raises(PlacementError, match=r"no room after 0\.2 s: job first has cpu 2") as error:
        find_room(Scripted("job first has cpu 2"), 0.2, "job.yaml", [].append)
    assert error.value.exit_code == 2
    assert "room_wait_s" in str(error.value)
