"""`rolemesh check`, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolemesh.errors import RolemeshError
from rolemesh_checks.command import check

OWN = '''
"""A check that one of the nodes fails."""

from rolemesh_durable.checks import Check, CheckedNode, CheckOptions


class OddOptions(CheckOptions):
    last: str = "1"


class Odd(Check):
    """Nodes with an odd number are broken."""

    Options = OddOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`."""
        if node.id.endswith(self.options.last):
            raise RuntimeError("this node is odd")
        return {"score": 2.0}
'''


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rolemesh.cli", "check", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_every_node_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    done = run(tmp_path, "memory", "network", "--nodes", "2x(cpu=1)", "--slower", "1000", "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["fit"] is True
    assert [node["node"] for node in told["nodes"]] == ["node-0", "node-1"]
    for node in told["nodes"]:
        assert node["fit"] is True
        assert node["values"].keys() == {"memory.gb_per_s", "network.gb_per_s"}
        assert all(value > 0 for value in node["values"].values())
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_node_that_fails_is_named_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = run(tmp_path, "own.py:Odd", "--nodes", "3x(cpu=1)", "--set", "own.py:Odd.last='2'")
    assert done.returncode == 1, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("node-")}
    assert "✔" in lines["node-0"]
    assert "✔" in lines["node-1"]
    assert "✘" in lines["node-2"]
    assert "this node is odd" in " ".join(done.stdout.split())


def test_a_wrong_request_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = run(tmp_path, "memry", "--nodes", "1x(cpu=1)")
    assert done.returncode == 2
    assert "memory" in done.stderr
    assert "Traceback" not in done.stderr
    for setting, what in (
        ("memory.mb=x", "options.mb: expected an integer"),
        ("disk.mb=3", "'disk' is not measured"),
        ("mb=3", "is no option"),
    ):
        with pytest.raises(RolemeshError, match=what):
            check(["memory"], nodes="1x(cpu=1)", settings=[setting], runs_dir=tmp_path / "runs")
