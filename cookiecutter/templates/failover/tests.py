"""A rank starts again after its first death. The next level has one that dies too soon; patience doubles."""

import pytest
from rolemesh import Attempt, Failure, JobView, RankRef, RankView
from rolemesh_testing import FailoverConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(FailoverConformance):
    """The tests that every failover level must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"patience_s": -1}, {"factor": 0.5})


OPTIONS = {{ cookiecutter.__class }}.Options(patience_s=1, factor=2)
LEVEL = {{ cookiecutter.__class }}(OPTIONS)
RANKS = tuple(RankView(role, rank, "n0", "running", 3, 0) for role, rank in [("a", 0), ("a", 1), ("group", 0)])
KILLED = Failure("signal", "a", 1, "n0")


def view(now: float, *restarts: float) -> JobView:
    attempts = tuple(Attempt("some-level", at, (RankRef("a", 1),), "", "recovered") for at in restarts)
    return JobView("job", 1, 2, RANKS, ("group",), attempts=attempts, now=now)


def test_a_rank_that_dies_for_the_first_time_starts_again_alone() -> None:
    plan = LEVEL.recover(KILLED, view(100))
    assert plan is not None
    assert (plan.restart, plan.source, plan.avoid) == ((("a", 1),), "memory", ())


@pytest.mark.parametrize(
    ("now", "restarts", "again"),
    [
        (100.9, [100], False),
        (101.1, [100], True),
        (101.9, [90, 100], False),
        (102.1, [90, 100], True),
        (1000, [100, 200, 300], True),
    ],
)
def test_each_restart_doubles_how_long_it_must_have_lived(now: float, restarts: list[float], again: bool) -> None:
    assert (LEVEL.recover(KILLED, view(now, *restarts)) is not None) is again


def test_restarts_of_other_ranks_cost_no_patience() -> None:
    assert LEVEL.recover(Failure("exit", "a", 0, "n0"), view(100.1, 100)) is not None


def test_a_lost_node_is_passed_on() -> None:
    assert LEVEL.recover(Failure("node_lost", node="n0"), view(100)) is None
