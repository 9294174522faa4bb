"""The lines of metrics that ranks continue from a persisted snapshot of other ranks."""

from __future__ import annotations

import pytest

from rolemesh_durable.protocol.rank.begun_lines import begun_line
from rolemesh_runtime.metrics import Metrics, joined

BEFORE = 3


def begun(rank: int) -> Metrics:
    """The line of steps 4 to 6 that rank `rank` had begun."""
    return Metrics("work", 6, 3, 1, [6.0, 3.0, 0.0], {"work.do": {"loss": [float(rank), 1.0]}}, {"work.do": {"n": 3.0}})


def continued(size: int) -> list[Metrics]:
    lines = [begun_line(begun, rank, BEFORE, size) for rank in range(size)]
    return [line for line in lines if line is not None]


def test_a_rank_of_a_role_of_the_same_size_continues_its_own_line() -> None:
    assert continued(BEFORE) == [begun(rank) for rank in range(BEFORE)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_the_ranks_of_now_report_together_what_the_former_ranks_had_reported(size: int) -> None:
    lines = continued(size)
    assert [line.ranks for line in lines] == [1] * size
    assert {(line.step, line.steps) for line in lines} == {(6, 3)}
    line = joined(lines)
    assert line.sums == {"work.do": {"n": 9.0}}
    assert line.means == {"work.do": {"loss": [3.0, 3.0]}}
    assert [seconds / size for seconds in line.times] == pytest.approx([6.0, 3.0, 0.0])


def test_no_rank_continues_a_line_if_none_had_begun() -> None:
    assert begun_line(lambda rank: None, 0, 2, 1) is None
    assert begun_line(begun, 0, 0, 1) is None
