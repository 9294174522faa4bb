"""How many nodes of which size a job gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh.errors import PlacementError
from rolemesh.job.prepared import Prepared, prepare
from rolemesh.job_file.loading import Written
from rolemesh_submit import Asked, groups_of

EXAMPLE = Path(__file__).resolve().parents[4] / "examples/hello"


def job(*overrides: str) -> Prepared:
    """`examples/hello`: a source of one CPU, and two sinks of half a CPU."""
    return prepare(Written((EXAMPLE / "job.yaml").read_text(), EXAMPLE, "job.yaml"), overrides)


def numbers(prepared: Prepared, asked: Asked) -> list[tuple[float, float, int, int, int]]:
    return [
        (group.node.cpu, group.node.gpu, group.least, group.number, group.most) for group in groups_of(prepared, asked)
    ]


SINKS_WITH_GPUS = ("roles.sink.resources.gpu=1", "roles.sink.world_size=20")
ELASTIC = "roles.sink.world_size={min: 2, max: 8}"


@pytest.mark.parametrize(
    ("overrides", "asked", "groups"),
    [
        ((), Asked(), [(2, 0, 1, 1, 1)]),
        ((), Asked(nodes="2"), [(1, 0, 2, 2, 2)]),
        ((), Asked(cpus=1), [(1, 0, 2, 2, 2)]),
        (("roles.sink.world_size=11",), Asked(cpus=2), [(2, 0, 4, 4, 4)]),
        ((), Asked(nodes="3", cpus=16), [(16, 0, 3, 3, 3)]),
        (SINKS_WITH_GPUS, Asked(), [(4, 8, 3, 3, 3)]),
        (SINKS_WITH_GPUS, Asked(gpus=4), [(3, 4, 5, 5, 5)]),
        ((ELASTIC,), Asked(), [(2, 0, 1, 1, 3)]),
        ((ELASTIC,), Asked(cpus=1), [(1, 0, 2, 2, 5)]),
        ((ELASTIC,), Asked(nodes="3", cpus=1), [(1, 0, 2, 3, 5)]),
    ],
)
def test_nodes_are_as_few_and_as_small_as_the_job_fits_on(
    overrides: tuple[str, ...], asked: Asked, groups: list[tuple[float, float, int, int, int]]
) -> None:
    assert numbers(job(*overrides), asked) == groups


def test_memory_has_room_for_shared_memory_and_custom_resources_are_those_of_the_ranks() -> None:
    prepared = job("roles.sink.resources.memory_gb=20", "roles.sink.resources.custom={ssd: 1.5}")
    (group,) = groups_of(prepared, Asked())
    assert group.node.custom == {"memory_gb": 80.0, "ssd": 3.0}
    (group,) = groups_of(prepared, Asked(memory_gb=30))
    assert (group.node.custom["memory_gb"], group.number) == (30, 2)


def test_groups_that_are_spelled_out_are_kept_with_their_labels() -> None:
    groups = groups_of(job(), Asked(nodes="2x(cpu=2,label.rack=a),1x(cpu=4,gpu=1,label.rack=b)"))
    assert [(g.number, g.node.cpu, g.node.gpu, g.node.labels["rack"]) for g in groups] == [
        (2, 2, 0, "a"),
        (1, 4, 1, "b"),
    ]


@pytest.mark.parametrize(
    ("overrides", "asked", "words"),
    [
        (("roles.source.resources.cpu=3",), Asked(cpus=2), "source"),
        ((), Asked(nodes="1", cpus=1), "cannot be placed"),
        ((), Asked(nodes="2x(cpu=0.5)"), "cannot be placed"),
        ((), Asked(nodes="2x(cpu=4)", cpus=4), "says itself how large"),
        ((), Asked(nodes="many"), "no group of nodes"),
    ],
)
def test_a_job_that_does_not_fit_is_refused_with_what_is_missing(
    overrides: tuple[str, ...], asked: Asked, words: str
) -> None:
    with pytest.raises(PlacementError, match=words):
        groups_of(job(*overrides), asked)
