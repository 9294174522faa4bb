"""Strategies, plugins, tests and jobs of the documents run. `tests.texts` compares tables with the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.texts import KINDS_OF_PLUGINS, blocks, defined, plugin_source

import rolemesh
from rolemesh import PlacementRequest, RankContext, RoleRequest
from rolemesh.api import observer
from rolemesh.api.batch import Shard
from rolemesh.api.plugin import NoOptions
from rolemesh.job.planning import plan_job
from rolemesh.job_file import load
from rolemesh.placement.nodes import parse_nodes
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_pack import PackScheduler

ROOT = Path(__file__).resolve().parents[1]


def test_the_constraint_on_the_page_about_strategies_holds_for_who_places_after_it() -> None:
    block = next(each for each in blocks("docs/write-a-scheduler.md", "python") if "class Skew(" in each)
    even = defined("from rolemesh import *\n" + block, "Even")
    racks = parse_nodes("2x(cpu=4,label.rack=a),1x(cpu=4,label.rack=b)")
    request = PlacementRequest((RoleRequest("work", 5),))
    plan = plan_job(
        request,
        racks,
        [("even", lambda *given: even(even.Options()).place(*given)), ("pack", PackScheduler(NoOptions()).place)],
    )
    found = [racks.node(plan.node_of("work", rank)).labels["rack"] for rank in range(5)]
    assert sorted(found) == ["a", "a", "a", "b", "b"]
    assert plan.constraints[0].told() == "even lets label.rack differ by 1 ranks of work"


# --------------------------------------------------------------------------------------------------- kinds of plugins


@pytest.mark.parametrize(
    "page", ["write-a-scheduler", "write-a-failover-level", "write-a-diagnoser", "write-an-observer"]
)
def test_the_test_on_a_page_passes(page: str, tmp_path: Path) -> None:
    test = next(block for block in blocks(f"docs/{page}.md", "python") if "assert " in block)
    offered = {name: getattr(rolemesh, name) for name in rolemesh.__all__}
    offered |= {name: getattr(observer, name) for name in observer.__all__} | {"tmp_path": tmp_path}
    exec(compile(plugin_source(page), page, "exec"), offered)
    exec(compile(test, page, "exec"), offered)


def installed(site: Path) -> dict[str, str]:
    """The plugins of all pages as distributions in `site`, and the environment of a process that sees them."""
    for page, (kind, name, cls) in KINDS_OF_PLUGINS.items():
        module = f"rolemesh_{name}".replace("-", "_")
        info = site / f"{module}-0.1.0.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: rolemesh-{name}\nVersion: 0.1.0\n"
        (info / "METADATA").write_text(head + "Requires-Dist: rolemesh>=0.1,<0.2\n")
        (info / "entry_points.txt").write_text(f"[rolemesh.{kind}]\n{name} = {module}:{cls}\n")
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(plugin_source(page))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "NO_COLOR": "1", "COLUMNS": "120"}


@pytest.mark.slow
def test_the_plugins_of_all_pages_work_in_one_job_through_kills(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nbc\ndef\n")
    (tmp_path / "flow.py").write_text(
        "import rolemesh\n\n@rolemesh.flow\ndef lengths(job):\n    job.sink.measure(job.data.next())\n"
    )
    (tmp_path / "roles.py").write_text(
        "class Sink:\n"
        "    def __init__(self, ctx):\n        self.ctx, self.seen = ctx, 0\n"
        "    def measure(self, lines):\n"
        "        self.seen += sum(map(len, lines['text']))\n"
        "        self.ctx.metric(reward=float(self.seen))\n"
        "    def snapshot(self):\n        return {'seen': self.seen}\n"
        "    def restore(self, state):\n        self.seen = state['seen']\n"
    )
    job = {
        "name": "pages",
        "flow": "flow.py:lengths",
        "steps": 40,
        "roles": {
            "data": {"use": "shuffler", "options": {"path": "lines.txt", "rows": 4}},
            "sink": {"use": "function", "world_size": 2, "options": {"target": "roles.py:Sink"}},
        },
        "placement": {"use": "headroom", "options": {"cpu": 0}},
        "failover": [{"use": "whole-role", "options": {"roles": ["sink"]}}, {"use": "job"}],
        "diagnosers": [{"use": "our-cluster"}, {"use": "standard"}],
        "observers": [{"use": "metric-csv", "options": {"metric": "reward"}}],
        "engine": {"options": {"transports": {"local": "plain-tcp"}}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    rehearsal = ["--chaos", "kills=2,seed=1,targets=rank", "--chaos-compare"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rolemesh.cli",
            "run",
            "job.yaml",
            "--backend",
            "local",
            "--nodes",
            "1x(cpu=4)",
            *rehearsal,
        ],
        cwd=tmp_path,
        env=installed(tmp_path / "site"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended exactly as the undisturbed one" in done.stdout
    lines = (tmp_path / "runs/pages/reward.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", *map(str, range(40))]


ALSO = ("write-a-scheduler", "write-a-diagnoser", "write-an-observer")
"""Pages whose conformance classes have few tests. They run in the soak."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.soak) if page in ALSO else page for page in KINDS_OF_PLUGINS]
)
def test_the_conformance_class_on_a_page_passes(page: str, tmp_path: Path) -> None:
    block = next((b for b in titled(page) if "rolemesh_testing" in b), None)
    if block is None:
        pytest.skip(f"the kit has no class for {KINDS_OF_PLUGINS[page][0]}")
    wanted = re.findall(r"from rolemesh_testing import (.*)", block)[0].split(", ")
    if find_spec("rolemesh_testing") is None or not set(wanted) <= set(import_module("rolemesh_testing").__all__):
        pytest.skip("the kit does not have this class yet")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env=installed(tmp_path / "site"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def titled(page: str) -> list[str]:
    """The blocks of a page that are files."""
    text = (ROOT / f"docs/{page}.md").read_text()
    return re.findall(r'^```python title="[^"]*"\n(.*?)^```', text, flags=re.MULTILINE | re.DOTALL)


# ----------------------------------------------------------------------------------------------------------- job files


def test_the_job_in_python_runs_and_its_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks("docs/job-file.md", "python") if "rolemesh.Job(" in block)
    there = {"__name__": "page"}
    exec(block, there)
    assert there["result"]["committed_steps"] == 3  # type: ignore[index]
    (tmp_path / "job.yaml").write_text(there["job"].text())  # type: ignore[attr-defined]
    assert load(tmp_path / "job.yaml").spec.name == "users"


# ----------------------------------------------------------------------------------------------------------- workloads


def test_the_tutorial_workload_continues_from_its_snapshot_as_if_nothing_had_happened() -> None:
    cls = defined(next(b for b in blocks("docs/write-a-workload.md", "python") if "class Shuffler" in b), "Shuffler")

    def fresh() -> Any:
        workload = cls(cls.Options(path="unused", rows=2))
        workload.setup(RankContext(seed=3))
        workload.lines = [f"line {i}" for i in range(5)]
        return workload

    def run(workload: Any, first: int, steps: int) -> list[list[str]]:
        taken = []
        for step in range(first, first + steps):
            workload.ctx.step = step
            taken.append(list(workload.next()["text"]))
        return taken

    undisturbed = run(fresh(), 0, 6)
    killed = fresh()
    before = run(killed, 0, 3)
    restarted = fresh()
    restarted.restore(killed.snapshot())
    assert before + run(restarted, 3, 3) == undisturbed
    assert sorted([line for step in undisturbed for line in step][:5]) == [f"line {i}" for i in range(5)]


def test_the_documented_lines_read_the_snapshot_of_two_ranks_without_rolemesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = tmp_path / "runs/sft/snapshots/step-59/trainer"
    role.mkdir(parents=True)
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    for rank in range(2):
        memory = MemorySnapshots(tmp_path, "trainer", rank)
        block = Shard(whole[2 * rank : 2 * rank + 2], (4, 3), (2 * rank, 0))
        memory.write(59, {"model": {"weight": block}, "updates": 60}, log=0, persist=False)
        image = memory.image(59)
        assert image is not None
        assert image.path is not None
        (role / f"rank-{rank}-of-2.safetensors").write_bytes(image.path.read_bytes()[: image.size])
        memory.close()
    monkeypatch.chdir(tmp_path)
    weights = defined(blocks("docs/protocol.md", "python")[0], "weights")
    assert weights.keys() == {"model.weight"}
    np.testing.assert_array_equal(weights["model.weight"].numpy(), whole)
