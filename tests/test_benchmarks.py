"""The benchmarks run and write what their reader expects; how fast anything is, no test asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES
from benchmarks.report import Report
from tests.texts import check_report

ROOT = Path(__file__).resolve().parents[1]
CHEAP = ("snapshot",)
"""Those that every test run runs; the soak runs the others."""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.soak) for name in NAMES]
)
def test_a_benchmark_runs_quickly_and_writes_its_report(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (printed,) = json.loads(done.stdout)
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written == printed
    assert written["quick"]
    assert list(check_report(written, name)) == []


def test_an_unknown_benchmark_is_refused_with_those_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "chains_of_gold"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "chains_of_gold" in done.stderr
    assert "controller" in done.stderr


def test_a_claim_holds_when_the_median_of_the_rounds_meets_its_bound() -> None:
    report = Report("one", "a title", quick=True)
    report.claim("faster", [3.0, 1.0, 5.0], at_least=3)
    report.claim("shorter", [3.0, 1.0, 5.0], at_most=2.9)
    assert [(claim.median, claim.holds) for claim in report.claims] == [(3.0, True), (3.0, False)]


@pytest.mark.parametrize("unit", ["s", "ms", "steps/s"])
def test_a_claim_in_a_unit_of_time_is_refused(unit: str) -> None:
    report = Report("one", "a title", quick=True)
    with pytest.raises(ValueError, match="claim a ratio"):
        report.claim("quick", [1.0], at_most=2, unit=unit)
    assert not report.claims
