"""An agent's report of its ranks' snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.waiting import HANG_S, until

from rolemesh_checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeMemory]:
    job = SimpleNamespace(
        snapshots=SnapshotPlan(enabled=True), run_dir=str(tmp_path / "run"), world_sizes={"work": 1}, steps=100
    )
    config: Any = SimpleNamespace(agent="a", host="127.0.0.1", job=job)
    made = NodeMemory(config, tmp_path)
    yield made
    made.close()


def test_a_warning_names_the_rank_without_room_for_its_snapshot_until_it_has_some(
    node: NodeMemory, tmp_path: Path
) -> None:
    memory = MemorySnapshots(tmp_path, "work", 0)
    memory.write(0, {"x": np.zeros(10)}, log=0, persist=False)
    node.started("work", 0, -1, 0)
    assert node.durable("work", 0, 0) == 0
    with pytest.raises(NoRoom):
        memory.write(1, {"x": np.broadcast_to(np.zeros(1), 1 << 56)}, log=0, persist=False)
    assert "work/0 has had no room in shared memory for a snapshot since step 1" in node.warning
    memory.write(2, {"x": np.zeros(10)}, log=0, persist=False)
    assert node.warning == ""


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_nobody_is_accused_when_a_job_goes_back_to_the_disk(node: NodeMemory, tmp_path: Path) -> None:
    MemorySnapshots(tmp_path, "work", 0).write(8, {"x": np.zeros(10)}, log=0, persist=False)
    node.started("work", 0, -1, 0)
    assert node.durable("work", 0, 8) == 8
    node.left("work", 0)
    node.forget(1, put)
    assert node.durable("work", 0, 8) == -1, "its status page is still there"
    assert "emptied" not in node.warning
    node.started("work", 0, 4, 1)
    assert node.durable("work", 0, 4) == -1
    assert "emptied" in node.warning, "it cannot have started without what it starts from"


def test_the_snapshot_for_which_all_ranks_wait_goes_to_disk_at_once(
    node: NodeMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolemesh_durable.agent.memory.PERSIST_S", 2 * HANG_S)
    memory = MemorySnapshots(tmp_path, "work", 0)
    node.started("work", 0, -1, 0)
    for step in (8, 9):
        memory.write(step, {"x": np.zeros(10)}, log=0, persist=True)
        assert node.durable("work", 0, step) == step
    until(lambda: [part.step for part in node.persisted(-1)] == [8], "the other one waits for the next look")
    node.pause = 9
    assert node.durable("work", 0, 9) == 9
    until(lambda: [part.step for part in node.persisted(-1)] == [8, 9], "it is on disk")
