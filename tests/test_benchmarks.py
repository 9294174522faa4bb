"""The benchmarks run and write what their reader expects; how fast anything is, no test asks."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import NAMES
from benchmarks.report import COUNTED, RESULTS, Report

ROOT = Path(__file__).resolve().parents[1]
CHEAP = ("snapshot",)
"""Those that every test run runs; the soak runs the others."""


def check(report: dict[str, Any], name: str) -> None:
    """The structure of a benchmark's JSON, and that its numbers belong together."""
    assert report["name"] == name
    assert report["rows"]
    assert report["claims"]
    for entry in report["rows"] + report["claims"]:
        assert entry["samples"]
        least = 0 if entry.get("unit") in COUNTED else math.ulp(0)  # there may be none of what is counted
        assert all(math.isfinite(sample) and sample >= least for sample in entry["samples"])
        assert entry["min"] == min(entry["samples"])
        assert entry["max"] == max(entry["samples"])
        assert entry["min"] <= entry["median"] <= entry["max"]
    for claim in report["claims"]:
        met = {"≥": claim["median"] >= claim["bound"], "≤": claim["median"] <= claim["bound"]}
        assert claim["holds"] is met[claim["relation"]]
    assert len(report["load_before"]) == len(report["load_after"]) == 3
    assert report["machine"]["cores"] >= 1
    assert {"rolemesh", "ray", "numpy"} <= report["machine"]["packages"].keys()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.soak) for name in NAMES]
)
def test_a_benchmark_runs_quickly_and_writes_its_report(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    (printed,) = json.loads(done.stdout)
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written == printed
    assert written["quick"]
    check(written, name)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_every_module_finds_what_it_imports(path: Path) -> None:
    if path.stem.startswith("dlrover"):
        pytest.skip("it runs in DLRover's own environment")
    importlib.import_module(f"benchmarks.{path.stem}")


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_results_are_whole_and_of_full_runs(name: str) -> None:
    report = json.loads((RESULTS / f"{name}.json").read_text())
    assert not report["quick"]
    check(report, name)


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_claims_are_ratios_or_counts(name: str) -> None:
    claims = json.loads((RESULTS / f"{name}.json").read_text())["claims"]
    units = {claim.get("unit", "×") for claim in claims}
    assert units <= {"×", *COUNTED}


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_explains_each_benchmark(name: str) -> None:
    assert f"`{name}`" in (ROOT / "benchmarks" / "README.md").read_text()


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
