"""Persisted snapshots: damage is found, the checkpoint before is used, and another world size gets the same tensors."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

from rolemesh.api.batch import Gathered, Shard
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.reshard import merge
from rolemesh_runtime import syncing
from rolemesh_runtime.digest import digest

ROWS = 7


def block(whole, rank, size):
    """Return the block of `whole` that rank `rank` of `size` has, as torch.chunk cuts it."""
    each = -(-len(whole) // size)
    low, high = min(len(whole), rank * each), min(len(whole), (rank + 1) * each)
    return Shard(whole[low:high], whole.shape, (low, *(0,) * (whole.ndim - 1)))


def state(rank, size, step):
    weights = torch.arange(ROWS * 3.0).reshape(ROWS, 3) + step
    return {
        "model": {"w": block(weights, rank, size), "b": block(torch.arange(3).to(torch.bfloat16), rank, size)},
        "moments": [block(np.arange(ROWS, dtype=np.float32) * step, rank, size)],
        "step": step,
        "rng": np.full(4, rank, np.uint8),
    }


def test_an_intact_set_is_found_by_its_manifest(run_dir, persisted):
    for step in (9, 19):
        persisted(step, {"trainer": 2}, state)
    assert [(each.step, each.warning) for each in disk.find_checkpoints(run_dir)] == [(19, ""), (9, "")]
    assert disk.verify(disk.step_folder(run_dir, 19)) == []
    newest, passed_over = disk.newest_intact(run_dir)
    assert (newest.step, passed_over) == (19, [])
    assert newest.manifest.world_sizes == {"trainer": 2}
    assert disk.newest_intact(run_dir, 9)[0].step == 9


def test_a_set_without_a_manifest_does_not_exist(run_dir, persisted):
    persisted(9, {"trainer": 2}, state)
    (persisted(19, {"trainer": 2}, state) / disk.MANIFEST).unlink()
    newest, passed_over = disk.newest_intact(run_dir)
    assert (newest.step, passed_over) == (9, [])
    reason = "the snapshot of step 19 does not count: the checkpoint has no manifest: it was never finished"
    assert disk.newest_intact(run_dir, 19) == (None, [reason])
    with pytest.raises(SnapshotError, match="never finished"):
        disk.load(disk.step_folder(run_dir, 19), "trainer", 0, 2, dict)


DAMAGE = {
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes, not"),
    "emptied": (lambda path: os.truncate(path, 0), "it has 0 bytes"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes, not"),
    "missing": (lambda path: path.unlink(), "it is missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_and_the_set_before_is_used(run_dir, persisted, kind):
    damage, message = DAMAGE[kind]
    persisted(9, {"trainer": 2}, state)
    name = disk.state_file("trainer", 1, 2)
    folder = persisted(19, {"trainer": 2}, state)
    damage(folder / name)
    (problem,) = disk.verify(folder)
    assert problem.file == name
    assert message in problem.what
    newest, passed_over = disk.newest_intact(run_dir)
    assert newest.step == 9
    assert f"step 19 is damaged: {name}" in passed_over[0]


def test_a_flipped_bit_anywhere_is_found(run_dir, persisted):
    persisted(9, {"trainer": 2}, state)
    folder = persisted(19, {"trainer": 2}, state)
    files = [path for path in folder.rglob("*") if path.is_file()]
    rng = random.Random(5)
    for _ in range(60):
        path = rng.choice(files)
        whole = path.read_bytes()
        bad = bytearray(whole)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        same = path.name == disk.MANIFEST and _decodes_alike(whole, bytes(bad))
        assert disk.verify(folder) or same
        assert disk.newest_intact(run_dir)[0].step == 9 or same
        path.write_bytes(whole)
    assert disk.verify(folder) == []


def _decodes_alike(one: bytes, other: bytes) -> bool:
    """White space may become other white space."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_every_torn_manifest_is_refused(run_dir, persisted):
    persisted(9, {"trainer": 1}, state)
    folder = persisted(19, {"trainer": 1}, state)
    whole = (folder / disk.MANIFEST).read_bytes()
    for length in range(0, len(whole) - 2, 7):
        (folder / disk.MANIFEST).write_bytes(whole[:length])
        newest, passed_over = disk.newest_intact(run_dir)
        assert newest.step == 9
        assert "manifest is damaged" in passed_over[0]


def test_sets_of_another_job_are_named_and_neither_used_nor_removed(run_dir, persisted):
    own, other = (persisted(step, {"trainer": 1}, state) for step in (9, 19))
    for path, job_id in ((own, "mine"), (other, "another")):
        manifest = msgspec.structs.replace(disk.read_manifest(path), job_id=job_id)
        disk.write_manifest(run_dir, manifest)
    found, passed_over = disk.newest_intact(run_dir, job_id="mine")
    assert found.step == 9
    assert passed_over == ["the snapshot of step 19 is that of another job (another), and is left alone"]
    assert disk.newest_complete(run_dir, "mine") == 9
    assert disk.prune(run_dir, 0, "mine") == [9]
    assert disk.newest_complete(run_dir) == 19


def test_pruning_keeps_the_newest_checkpoints_and_drops_unfinished_ones(run_dir, persisted):
    for step in (9, 19, 29, 39):
        persisted(step, {"trainer": 1}, state)
    (disk.step_folder(run_dir, 29) / disk.MANIFEST).unlink()
    disk.step_folder(run_dir, 49).mkdir()
    assert disk.prune(run_dir, keep=2, needed=9) == [29]
    assert disk.prune(run_dir, keep=2) == [9]
    assert [each.step for each in disk.find_checkpoints(run_dir)] == [49, 39, 19]


def test_a_manifest_removes_files_of_another_world_size(run_dir, persisted):
    (persisted(9, {"trainer": 3}, state) / disk.MANIFEST).unlink()
    folder = persisted(9, {"trainer": 2}, state)
    assert sorted(path.name for path in (folder / "trainer").iterdir()) == [
        "rank-0-of-2.safetensors",
        "rank-1-of-2.safetensors",
    ]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1), (2, 2), (3, 2), (2, 4), (4, 3), (1, 9)])
def test_another_world_size_gets_the_same_tensors(run_dir, persisted, old, new):
    folder = persisted(9, {"trainer": old}, state)
    found = [disk.load(folder, "trainer", rank, new, lambda r=rank: state(r, new, 0)).state for rank in range(new)]
    for rank in range(new):
        wanted = state(rank, new, 9)
        if old != new:
            # What differs between the old ranks belongs to none of the new ones.
            wanted.pop("rng")
            if old == 1:
                wanted["rng"] = np.zeros(4, np.uint8)
        assert digest(found[rank]) == digest(wanted)


def test_as_many_ranks_that_divide_another_dimension_get_their_blocks(run_dir, persisted):
    whole = np.arange(24.0).reshape(4, 6)

    def block(rank: int, dim: int) -> Shard:
        offsets = [0, 0]
        offsets[dim] = rank * whole.shape[dim] // 2
        return Shard(np.split(whole, 2, dim)[rank].copy(), whole.shape, offsets)

    folder = persisted(9, {"trainer": 2}, lambda rank, *_: {"w": [block(rank, 0)], "step": 9, "own": rank})
    for rank in range(2):
        found = disk.load(folder, "trainer", rank, 2, lambda r=rank: {"w": [block(r, 1)]}).state
        assert digest(found) == digest({"w": [block(rank, 1)], "step": 9})
        same = disk.load(folder, "trainer", rank, 2, lambda r=rank: {"w": [block(r, 0)]}).state
        assert same["own"] == rank


@pytest.mark.parametrize(("old", "new"), [(1, 2), (3, 2)])
def test_a_new_rank_that_gathers_gets_the_shards_of_all_ranks_whole(run_dir, persisted, old, new):
    own = lambda rank: Shard(np.arange(rank + 1), (rank + 1,), (0,))  # noqa: E731
    folder = persisted(9, {"data": old}, lambda rank, *_: {"read": {f"rank-{rank}": own(rank)}})
    for rank in range(new):
        found = disk.load(folder, "data", rank, new, lambda: {"read": Gathered()}).state["read"]
        assert {name: list(whole) for name, whole in found.items()} == {
            f"rank-{r}": list(range(r + 1)) for r in range(old)
        }


def test_merged_states_have_whole_tensors(run_dir, persisted):
    folder = persisted(9, {"trainer": 3}, state)
    merged = merge(disk.states(folder, "trainer"))
    assert torch.equal(merged["model"]["w"], torch.arange(ROWS * 3.0).reshape(ROWS, 3) + 9)
    assert merged["model"]["b"].dtype == torch.bfloat16
    assert merged["step"] == 9
    assert "rng" not in merged


def test_stateless_roles_have_no_files(run_dir, persisted):
    folder = persisted(9, {"reward": 2}, lambda *_: None)
    assert disk.read_manifest(folder).files == {}
    assert disk.load(folder, "reward", 0, 3, dict).state is None
    with pytest.raises(SnapshotError, match="no role 'trainer', only reward"):
        disk.load(folder, "trainer", 0, 1, dict)


def test_shards_that_do_not_fit_are_refused_with_a_remedy(run_dir, persisted):
    folder = persisted(9, {"trainer": 2}, state)
    with pytest.raises(SnapshotError, match="stored in shards, but is none in a new rank"):
        disk.load(folder, "trainer", 0, 1, lambda: {"model": {}})
    other = {**state(0, 1, 0), "moments": [Shard(np.zeros(ROWS + 1, np.float32), (ROWS + 1,), (0,))]}
    with pytest.raises(SnapshotError, match=r"was of shape \(7,\), and is of shape \(8,\)"):
        disk.load(folder, "trainer", 0, 1, lambda: other)
    hole = persisted(19, {"trainer": 2}, lambda rank, *_: {"w": Shard(np.zeros(2), (5,), (3 * rank,))})
    with pytest.raises(SnapshotError, match="cover 4 of the 5 elements"):
        disk.load(hole, "trainer", 0, 1, lambda: {"w": Shard(np.zeros(5), (5,), (0,))})


# --------------------------------------------------------------------------------------------------------------- DCP


def test_dcp_reads_the_folder_of_a_role(run_dir, persisted):
    folder = persisted(9, {"trainer": 3}, state)
    wanted = {
        "model": {"w": torch.zeros(ROWS, 3), "b": torch.zeros(3, dtype=torch.bfloat16)},
        "moments": [torch.zeros(ROWS)],
        "rng": torch.zeros(4, dtype=torch.uint8),
        "rng@2": torch.zeros(4, dtype=torch.uint8),
    }
    dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(folder / "trainer")), no_dist=True)
    assert torch.equal(wanted["model"]["w"], torch.arange(ROWS * 3.0).reshape(ROWS, 3) + 9)
    assert wanted["model"]["b"].tolist() == [0, 1, 2]
    assert torch.equal(wanted["moments"][0], torch.arange(7.0) * 9)
    assert wanted["rng"].tolist() == [0] * 4
    assert wanted["rng@2"].tolist() == [2] * 4


READER = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
rank, size, store, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (size,))
state = {"model.w": distribute_tensor(torch.zeros(7, 3), mesh, [Shard(0)])}
dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
assert torch.equal(state["model.w"].full_tensor(), torch.arange(21.0).reshape(7, 3) + 9)
dist.destroy_process_group()
"""


def test_dcp_reads_it_at_another_world_size(run_dir: Path, persisted):
    folder = persisted(9, {"trainer": 3}, state)
    args = ["2", str(run_dir / "store"), str(folder / "trainer")]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    readers = [subprocess.Popen([sys.executable, "-c", READER, str(rank), *args], env=env) for rank in range(2)]
    assert [reader.wait() for reader in readers] == [0, 0]


@pytest.mark.parametrize("kind", ["missing", "truncated"])
def test_a_set_whose_files_are_on_another_nodes_disk_is_not_made_whole(run_dir, persisted, manifest, kind):
    folder = persisted(9, {"trainer": 2}, state)
    (folder / disk.MANIFEST).unlink()
    name = disk.state_file("trainer", 1, 2)
    listed = {each: ((folder / each).stat().st_size, "") for each in (disk.state_file("trainer", 0, 2), name)}
    DAMAGE[kind][0](folder / name)
    with pytest.raises(SnapshotError, match=f"{name} .* not where the master is(.|\n)*one folder that all nodes share"):
        manifest(9, {"trainer": 2}, [listed])
    assert disk.newest_intact(run_dir) == (None, [])


def test_names_that_an_attempt_has_moved_but_not_synced_are_synced_by_the_next(run_dir, persisted, monkeypatch):
    folder = persisted(9, {"trainer": 1}, state)
    manifest = disk.read_manifest(folder)
    synced = []
    monkeypatch.setattr(syncing, "sync_folder", lambda path: synced.append(path.name))
    disk.write_manifest(run_dir, manifest, dict.fromkeys(manifest.files, "1-gone"))
    assert synced == ["trainer", "step-9", "snapshots"]
