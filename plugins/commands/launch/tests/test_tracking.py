"""A trainer that can resume in two ways: from a state that an earlier life kept, and from a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rolemesh_launch import tracking


class Kept:
    """A host with the kept state of a trainer."""

    def __init__(self, step: int) -> None:
        self.left: dict[str, Any] = {"position": {"step": step}}

    def kept(self, name: str) -> Any:
        return self.left.get(name)

    def forget(self) -> None:
        self.left = {}

    def begin(self, objects: Mapping[str, tracking.Stateful]) -> int:
        return 0

    def done(self, step: int, metrics: Mapping[str, Any]) -> None:
        pass


@pytest.fixture
def no_job() -> Iterator[None]:
    before = tracking.current
    yield
    tracking.current = before


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    ("kept", "own", "said", "stays"),
    [
        (5, 0, "", True),
        (5, 3, "KeepState goes on after its step 5, not from the trainer's own checkpoint of step 3", True),
        (5, 5, "KeepState goes on after its step 5, not from the trainer's own checkpoint of step 5", True),
        (5, 8, "the trainer goes on from its own checkpoint of step 8, which is newer than KeepState's step 5", False),
    ],
)
def test_the_newer_of_two_states_counts_and_the_user_hears_of_it(kept: int, own: int, said: str, stays: bool) -> None:
    tracking.current = host = Kept(kept)
    assert tracking.newer("position", lambda position: position["step"], own) == said
    assert bool(host.left) == stays


@pytest.mark.usefixtures("no_job")
def test_without_a_job_a_trainer_resumes_by_its_own_means() -> None:
    tracking.current = None
    assert tracking.newer("position", lambda position: position["step"], 3) == ""


@pytest.mark.usefixtures("no_job")
def test_a_metric_may_have_any_name() -> None:
    class Heard(Kept):
        def done(self, step: int, metrics: Mapping[str, Any]) -> None:
            self.left = dict(metrics)

    host = Heard(0)
    tracking.Run(host, 0).done(self=1.0, step=2.0, metrics=3.0)
    assert host.left == {"self": 1.0, "step": 2.0, "metrics": 3.0}
