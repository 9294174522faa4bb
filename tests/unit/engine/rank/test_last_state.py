"""The checkpoint after the last step of a job that takes no snapshots: when ranks write it, and how it is reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rolemesh.api.batch import Shard
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.attempt import Attempt
from rolemesh_console.kept import export_command, kept_lines
from rolemesh_console.text import amount
from rolemesh_durable.bundle import snapshot_plan
from rolemesh_durable.master.kept import DRAIN, ENDED_EARLY, Kept, described, settle
from rolemesh_durable.options import Snapshots
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.rank import last_state
from rolemesh_runtime.digest import digest

STATE = {
    "model": {
        "w": Shard(torch.arange(12.0).reshape(3, 4).T, (4, 6), (0, 0)),
        "half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        "one": torch.tensor(3),
        "none": torch.zeros(0, 2),
        "view": np.arange(20, dtype=np.int16)[::3],
        "odd": np.array([1 + 2j], dtype=np.complex128),
    },
    "data": {"seen": 12, "names": ["a", "b"], "raw": bytes(100_000)},
}


def start(run_dir: Path, **launch: Any) -> Any:
    fields = {"role": "trainer", "rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2, "generation": 3}
    return SimpleNamespace(job=SimpleNamespace(run_dir=str(run_dir)), launch=RankLaunch(**fields | launch), timeline=0)


def test_a_state_that_was_written_at_the_end_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    part = last_state.write_last(start(tmp_path), STATE, 9)
    name = "trainer/rank-1-of-2.safetensors"
    assert list(part.files) == [name]
    assert (part.role, part.rank, part.step, part.generation) == ("trainer", 1, 9, 3)
    manifest = disk.Manifest("job", "id", 9, 10, {"trainer": 2}, part.files)
    folder = disk.write_manifest(tmp_path, manifest, {name: part.attempt})
    assert disk.verify(folder) == []
    (found,) = disk.states(folder, "trainer")
    assert digest(found) == digest(STATE)
    assert not disk.has_log(folder, disk.read_manifest(folder))
    assert disk.has_state(manifest, "trainer")


def test_a_rank_without_state_has_a_part_without_files(tmp_path: Path) -> None:
    assert last_state.write_last(start(tmp_path), None, 9).files == {}
    assert not disk.snapshots_folder(tmp_path).exists()


def test_a_disk_that_is_full_leaves_no_file_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("rolemesh_checkpoint.attempt.os.fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        last_state.write_last(start(tmp_path), STATE, 9)
    assert list(tmp_path.rglob("*.safetensors*")) == []
    why = last_state.not_kept(start(tmp_path), raised.value)
    assert why == f"the last state of trainer/1 cannot be written: No space left on device (in {tmp_path}/snapshots)"


@pytest.mark.parametrize(
    ("extra", "stateful", "enabled", "last", "keep"),
    [
        ({}, True, False, True, 2),
        ({}, False, False, False, 2),
        ({"snapshots": {"keep": "last"}}, True, False, True, 1),
        ({"snapshots": {"keep": "none"}}, True, False, False, 0),
        ({"snapshots": {"enabled": False}}, True, False, True, 2),
        ({"snapshots": {"persist_every": 5}}, True, True, False, 2),
        ({"failover": [{"use": "job"}]}, True, True, False, 2),
        ({"failover": [{"use": "job"}], "snapshots": {"enabled": False}}, True, False, True, 2),
        ({"failover": [{"use": "job"}], "snapshots": {"keep": "none"}}, True, True, False, 0),
    ],
)
def test_which_jobs_take_snapshots_and_which_write_their_last_state_only(
    extra: dict[str, Any], stateful: bool, enabled: bool, last: bool, keep: int
) -> None:
    given = Snapshots(**extra.get("snapshots", {}))
    plan = snapshot_plan(given, bool(extra.get("failover")), resumes=False, stateful=stateful)
    assert (plan.enabled, plan.last, plan.keep) == (enabled, last, keep)


def ended(tmp_path: Path, **plan: Any) -> tuple[Any, Path]:
    """The configuration of a job that has ended, and the folder of a whole checkpoint of its step 9."""
    part = last_state.write_last(start(tmp_path, rank=0, world_size=1), STATE, 9)
    attempts = dict.fromkeys(part.files, part.attempt)
    folder = disk.write_manifest(tmp_path, disk.Manifest("job", "id", 9, 10, {"trainer": 1}, part.files), attempts)
    job = SimpleNamespace(snapshots=SnapshotPlan(**plan), job_id="id", stateful=("trainer",))
    return SimpleNamespace(job=job, exports=("trainer", "critic")), folder


def state(status: str, *, persisted: int = 9, committed: int = 9) -> Any:
    return SimpleNamespace(status=status, end=9, persisted=persisted, committed=committed)


def test_the_result_says_what_is_kept_and_parts_of_no_checkpoint_are_removed(tmp_path: Path) -> None:
    config, folder = ended(tmp_path, last=True)
    Attempt(tmp_path, "trainer", 0, 1, 12, 0).write("trainer/rank-0-of-1.safetensors", lambda writer: None)
    kept = settle(tmp_path, config, state("done"))
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert kept == Kept(9, str(folder), size, ("trainer",))
    assert [path.name for path in disk.snapshots_folder(tmp_path).iterdir()] == ["step-9"]
    told = described(kept, state("done"), config, ())
    assert told == {"kept": kept._asdict() | {"exports": ["trainer"]}, "not_kept": ""}


def test_a_job_that_keeps_none_removes_its_checkpoints_only_when_it_is_done(tmp_path: Path) -> None:
    config, folder = ended(tmp_path, enabled=True, keep=0)
    assert settle(tmp_path, config, state("failed")) is not None
    assert folder.exists()
    assert settle(tmp_path, config, state("done")) is None
    assert not disk.snapshots_folder(tmp_path).exists()


def test_checkpoints_of_another_job_are_neither_removed_nor_counted(tmp_path: Path) -> None:
    config, folder = ended(tmp_path, enabled=True, keep=0)
    config.job.job_id = "another"
    assert settle(tmp_path, config, state("done")) is None
    assert folder.exists()


@pytest.mark.parametrize(
    ("plan", "status", "persisted", "committed", "why"),
    [
        (SnapshotPlan(last=True), "done", -1, 9, "node0: the disk is full"),
        (SnapshotPlan(enabled=True), "done", 4, 9, "node0: the disk is full"),
        (SnapshotPlan(last=True), "interrupted", -1, 5, ENDED_EARLY + DRAIN),
        (SnapshotPlan(last=True), "failed", -1, 5, ENDED_EARLY),
        (SnapshotPlan(last=True), "failed", -1, -1, ""),
        (SnapshotPlan(keep=0), "done", -1, 9, ""),
    ],
)
def test_why_a_last_state_is_not_kept(
    tmp_path: Path, plan: SnapshotPlan, status: str, persisted: int, committed: int, why: str
) -> None:
    job = SimpleNamespace(snapshots=plan, stateful=("trainer",))
    config: Any = SimpleNamespace(job=job, exports=())
    found = described(
        None, state(status, persisted=persisted, committed=committed), config, ("node0: the disk is full",)
    )
    assert found == {"kept": None, "not_kept": why}


def test_the_command_that_exports_works_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "my runs" / "sft"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rolemesh_console.kept._program", lambda: "rolemesh")
    assert export_command(run_dir) == "rolemesh checkpoint export 'my runs/sft'"
    folder = run_dir / "snapshots" / "step-9"
    kept = {"step": 9, "folder": "/elsewhere/step-9", "bytes": 1_250_000, "roles": ["trainer"], "exports": ["trainer"]}
    assert kept_lines({"kept": kept, "not_kept": ""}, run_dir) == [], "somebody has removed it"
    folder.mkdir(parents=True)
    assert kept_lines({"kept": kept, "not_kept": ""}, run_dir) == [
        ("last snapshot", "my runs/sft/snapshots/step-9/  1.2 MB, the state of trainer after step 9"),
        ("to export it", "rolemesh checkpoint export 'my runs/sft'"),
    ]
    assert kept_lines({"kept": None, "not_kept": "the disk is full"}, run_dir) == [("not kept", "the disk is full")]


def test_amounts_have_fitting_units() -> None:
    assert [amount(size) for size in (12, 1500, 2_000_000, 3_100_000_000)] == ["12 bytes", "1.5 kB", "2.0 MB", "3.1 GB"]
