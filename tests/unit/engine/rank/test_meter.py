"""A rank's log has each complete line of metrics up to its snapshot, also a line that ended late."""

from __future__ import annotations

import msgspec
import pytest

from rolemesh.api.workload import RankContext
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import EnginePort
from rolemesh_runtime.metrics import Metrics

CUTS = ((0, 4),)
"""Lines of four steps."""


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[int, int, bool]] = []

    def line(self, step: int, encoded: bytes, *, partial: bool = False) -> None:
        line = msgspec.msgpack.decode(encoded, type=Metrics)
        self.lines.append((step, line.steps, partial))


@pytest.fixture
def metered() -> tuple[Meter, Log]:
    ctx: RankContext = RankContext(role="a", rank=0, generation=0, port=EnginePort())
    log = Log()
    return Meter(ctx, CUTS, lambda message: None, log), log


def run(meter: Meter, *steps: int) -> None:
    for step in steps:
        meter.finished(step, 0)


def test_a_snapshot_in_the_middle_of_a_line_logs_the_begun_line(metered: tuple[Meter, Log]) -> None:
    meter, log = metered
    run(meter, 0, 1, 2, 3, 4, 5)
    meter.log_lines(5)
    assert log.lines == [(3, 4, False), (5, 2, True)]


def test_a_line_that_the_master_ends_at_the_step_of_the_last_snapshot_is_logged_with_the_next_one(
    metered: tuple[Meter, Log],
) -> None:
    meter, log = metered
    run(meter, 0, 1)
    meter.log_lines(1)
    meter.cut(((0, 4), (2, 1)))
    run(meter, 2)
    meter.log_lines(2)
    assert log.lines == [(1, 2, True), (1, 2, False), (2, 1, False)]


def test_a_complete_line_is_logged_once(metered: tuple[Meter, Log]) -> None:
    meter, log = metered
    run(meter, 0, 1, 2, 3)
    meter.log_lines(3)
    run(meter, 4, 5)
    meter.log_lines(5)
    meter.log_lines(5)
    assert [line for line in log.lines if not line[2]] == [(3, 4, False)]
