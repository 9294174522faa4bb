"""A node is judged by the measurements there and on other nodes."""

from __future__ import annotations

import pytest

from rolemesh_durable.extensions.checks.judging import Limits, unfit
from rolemesh_durable.extensions.checks.messages import Measured

SLOWER = (Limits("speed", slower=3.0),)


def at(value: float) -> tuple[Measured, ...]:
    return (Measured("speed", {"x": value}),)


@pytest.mark.parametrize(
    ("here", "others", "fit"),
    [(10, [10, 11], True), (3.4, [10, 10], True), (3.2, [10, 10], False), (3.2, [], True), (1, [10, 1, 1], True),
     (float("nan"), [10], False), (100, [10], True)],
)  # fmt: skip
def test_a_node_is_compared_with_the_median_of_the_others(here: float, others: list[float], fit: bool) -> None:
    said = unfit(SLOWER, at(here), [at(value) for value in others])
    assert (said == "") == fit, said
    if not fit:
        assert "speed" in said
        assert f"{here:.4g}" in said


def test_a_missing_or_too_small_number_is_an_error() -> None:
    limits = (Limits("room", {"gb": 5.0}),)
    assert unfit(limits, (Measured("room", {"gb": 5.0}),), []) == ""
    assert "gb is 4.9, and must be at least 5" in unfit(limits, (Measured("room", {"gb": 4.9}),), [])
    assert "gb is not measured" in unfit(limits, (Measured("room", {"tb": 4.9}),), [])
    assert "gb is nan" in unfit(limits, (Measured("room", {"gb": float("nan")}),), [])


def test_a_check_that_cannot_run_is_a_reason_and_the_error_lists_all_reasons() -> None:
    limits = (Limits("a"), Limits("b"), Limits("c", {"x": 1.0}))
    said = unfit(limits, (Measured("a", error="ValueError: no"), Measured("c", {"x": 0.0})), [])
    why = [
        "check a failed: ValueError: no",
        "check b failed: it was not run",
        "check c: x is 0, and must be at least 1",
    ]
    assert said == "; ".join(why)


def test_a_check_that_failed_on_other_nodes_is_no_standard() -> None:
    assert unfit(SLOWER, at(1.0), [(Measured("speed", error="dead"),), at(1.5)]) == ""
