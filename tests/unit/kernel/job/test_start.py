"""How many ranks elastic roles start with."""

from typing import Any

import pytest

import rolemesh
from rolemesh.errors import RolemeshError
from rolemesh.job.prepared import Prepared
from rolemesh.placement.nodes import parse_nodes


@rolemesh.flow
def flow(job: Any) -> None:
    job.a.getuser()


def prepared(**size: Any) -> Prepared:
    job = rolemesh.Job("elastic", steps=1).flow(flow)
    return job.role("a", use="function", options={"target": "getpass:getuser"}, world_size=size).validate()


@pytest.mark.parametrize(
    ("size", "cores", "starts"),
    [
        ({"min": 1, "max": 8}, 9, 8),
        ({"min": 1, "max": 8, "start": 2}, 9, 2),
        ({"min": 1, "max": 8, "start": 8}, 9, 8),
        ({"min": 1, "max": 8, "start": 5}, 3, 3),
    ],
)
def test_a_role_starts_with_start_ranks_or_as_many_as_there_is_room_for(
    size: dict[str, int], cores: int, starts: int
) -> None:
    job, cluster = prepared(**size), parse_nodes(f"{cores}x(cpu=1)")
    assert job.largest(cluster) == {"a": starts}
    assert job.elastic == {"a": (1, 8)}, "a scaler may still ask for all of the range"
    assert job.fitted(cluster).job.spec.roles["a"].world_size == starts
    written = job.job.spec.model_dump()["roles"]["a"]["world_size"]
    assert written == {key: value for key, value in size.items() if (key, value) != ("start", 8)}


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ({"min": 2, "max": 8, "start": 1}, "start 1 is not between min 2 and max 8"),
        ({"min": 2, "max": 2, "start": 3}, "start 3 is not between min 2 and max 2"),
        ({"min": 2, "start": 3}, "an elastic role has min, max and optionally start"),
        ({"min": 2, "max": 3, "begin": 3}, "an elastic role has min, max and optionally start"),
    ],
)
def test_a_start_that_the_role_may_not_have_is_refused(size: dict[str, int], why: str) -> None:
    with pytest.raises(RolemeshError, match=why):
        prepared(**size)
