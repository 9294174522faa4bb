"""``rolemesh checkpoint`` on a run's folder, as a person calls it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rolemesh.api.batch import Shard
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.memory import MemorySnapshots

Run = Callable[..., subprocess.CompletedProcess[str]]

WORKLOAD = """
from pathlib import Path
from pydantic import BaseModel
from rolemesh.api.workload import Workload

class ResourceGuard(Workload):
    class Options(BaseModel):
        name: str = "weights"

    def snapshot(self):
        return {}

    def restore(self, state): ...

class Exporter(ResourceGuard):
    @classmethod
    def export(cls, options, state, folder):
        Path(folder, options.name).write_text(f"{sorted(state)} {state['w'].tolist()}")
"""
JOB = """
name: demo
flow: flow.py:flow
steps: 100
engine: {options: {state: ${NOT_SET_HERE}}}
roles:
  trainer: {use: exporter, world_size: 2, options: {name: w.txt}}
  data: {use: keeper}
  reward: {use: exporter}
"""


@pytest.fixture
def rolemesh(rolemesh: Run, tmp_path: Path) -> Run:
    site = tmp_path / "site"
    info = site / "demo_dist-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rolemesh.workloads]\nexporter = demo_plugin:Exporter\nkeeper = demo_plugin:ResourceGuard\n"
    )
    (site / "demo_plugin.py").write_text(WORKLOAD)
    return partial(rolemesh, site=site)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with snapshots of steps 9 and 19, and an unfinished one of step 29."""
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    (folder / "plan.json").write_text("{}")
    for step in (9, 19):
        files = {}
        for role, rank, size in (("trainer", 0, 2), ("trainer", 1, 2), ("data", 0, 1)):
            shm = tmp_path / f"shm-{step}"
            state = {"w": Shard(np.full(2, step + rank), (2 * size,), (2 * rank,)), "rank": rank}
            memory = MemorySnapshots(shm, role, rank)
            memory.write(step, state, log=0, persist=False)
            data = (shm / f"snap-{role}-{rank}-0").read_bytes()
            name = disk.state_file(role, rank, size)
            path = disk.step_folder(folder, step) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            files[name] = (len(data), hashlib.sha256(data).hexdigest())
        sizes = {"trainer": 2, "data": 1, "reward": 1}
        disk.write_manifest(folder, disk.Manifest("demo", "id", step, 100, sizes, files))
    disk.step_folder(folder, 29).mkdir()
    return folder


def test_list_shows_every_set_and_which_count(rolemesh, run_dir):
    done = rolemesh("checkpoint", "list", "demo")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["step", "state"],
        ["29", "unfinished"],
        ["19", "complete"],
        ["9", "complete"],
    ]
    rows = json.loads(rolemesh("checkpoint", "list", str(run_dir), "--json").stdout)
    assert [(row["step"], row["complete"]) for row in rows] == [(29, False), (19, True), (9, True)]
    assert rows[1]["world_sizes"] == {"trainer": 2, "data": 1, "reward": 1}


def test_verify_names_the_damage_and_a_remedy(rolemesh, run_dir):
    assert rolemesh("checkpoint", "verify", "demo").returncode == 0
    path = disk.step_folder(run_dir, 19) / disk.state_file("trainer", 1, 2)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    done = rolemesh("checkpoint", "verify", "demo")
    assert done.returncode == 1
    assert "step 19: damaged\n  trainer/rank-1-of-2.safetensors: its bytes are not those" in done.stdout
    assert "step 9: intact (3 files)" in done.stdout
    assert "→ the job resumes from step 9; remove" in done.stderr
    found = json.loads(rolemesh("checkpoint", "verify", "demo", "--step", "19", "--json").stdout)
    assert [problem["file"] for problem in found[0]["problems"]] == ["trainer/rank-1-of-2.safetensors"]
    assert rolemesh("checkpoint", "verify", str(disk.step_folder(run_dir, 9))).returncode == 0


def test_verify_of_a_torn_manifest(rolemesh, run_dir):
    manifest = disk.step_folder(run_dir, 19) / disk.MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:99])
    done = rolemesh("checkpoint", "verify", "demo")
    assert done.returncode == 1
    assert "step 19: does not count: the manifest is damaged" in done.stdout


def test_export_merges_the_ranks_and_calls_the_workload(rolemesh, run_dir, tmp_path):
    done = rolemesh("checkpoint", "export", "demo", "--role", "trainer", "-o", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "role trainer after step 19: out/ (w.txt)\n"
    assert (tmp_path / "out" / "w.txt").read_text() == "['w'] [19, 19, 20, 20]"
    again = rolemesh("checkpoint", "export", "demo", "-o", "out")
    assert again.returncode == 2
    assert "out exists already" in again.stderr


def test_without_a_role_each_is_exported_that_can_be_and_one_that_fails_keeps_no_other_back(
    rolemesh, run_dir, tmp_path
):
    job = run_dir / "job.yaml"
    job.write_text(job.read_text().replace("data: {use: keeper}", "data: {use: exporter, options: {name: d.txt}}"))
    done = rolemesh("checkpoint", "export", "demo", "-o", "both")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both/trainer/w.txt").exists()
    assert (tmp_path / "both/data/d.txt").exists()
    assert "role data after step 19: both/data/ (d.txt)" in done.stdout
    job.write_text(job.read_text().replace("d.txt", "no/such/folder.txt"))
    done = rolemesh("checkpoint", "export", "demo", "-o", "one", "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert rows["roles"] == [{"role": "trainer", "folder": "one/trainer", "files": ["w.txt"]}]
    assert "role data is not exported" in done.stderr
    assert not (tmp_path / "one/data").exists()


def test_export_falls_back_to_the_snapshot_before_and_says_so(rolemesh, run_dir, tmp_path):
    (disk.step_folder(run_dir, 19) / disk.state_file("trainer", 0, 2)).unlink()
    done = rolemesh("checkpoint", "export", "demo", "--json")
    assert json.loads(done.stdout) == {"step": 9, "role": "trainer", "folder": "demo-step-9", "files": ["w.txt"]}
    assert "warning: the snapshot of step 19 is damaged: trainer/rank-0-of-2.safetensors: it is missing" in done.stderr
    assert rolemesh("checkpoint", "export", "demo", "--step", "19").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--role", "data"], "ResourceGuard, the workload of role data, cannot be exported"),
        (["--role", "reward"], "role reward keeps no state"),
        (["--role", "trainr"], "the snapshot has no role 'trainr'"),
        (["--step", "10"], "there is no complete snapshot of step 10"),
    ],
)
def test_states_that_cannot_be_exported_are_refused_with_a_remedy(rolemesh, run_dir, arguments, message):
    done = rolemesh("checkpoint", "export", "demo", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "→" in done.stderr


def test_a_run_that_is_not_there(rolemesh, run_dir):
    done = rolemesh("checkpoint", "list", "dmo")
    assert done.returncode == 2
    assert "did you mean 'demo'?" in done.stderr
