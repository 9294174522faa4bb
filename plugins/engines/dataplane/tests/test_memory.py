"""Snapshots in shared memory: what is written is read, and a kill at any moment leaves the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from tests.waiting import until

from rolemesh.api.batch import Shard
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_runtime.digest import digest


def test_every_kind_of_state_comes_back(shm, every_kind):
    memory = MemorySnapshots(shm, "trainer", 1)
    memory.write(0, every_kind, log=7, persist=False)
    found = MemorySnapshots(shm, "trainer", 1).read(0)
    assert found.log == 7
    assert digest(found.state) == digest(every_kind)
    assert found.state["nested"]["bfloat16"].dtype == torch.bfloat16
    assert found.state["python_rng"] == every_kind["python_rng"]


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=5)
    | st.binary(max_size=9)
)
_arrays = hnp.arrays(
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes() | hnp.byte_string_dtypes(min_len=1),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
_values = st.recursive(
    _scalars | _arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(-9, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=6), _values, max_size=5), min_size=1, max_size=4))
def test_states_of_any_shape_come_back_one_after_the_other(tmp_path_factory, states):
    folder = tmp_path_factory.mktemp("states")
    memory = MemorySnapshots(folder, "role", 0)
    for step, state in enumerate(states):
        memory.write(step, state, log=step, persist=False)
        assert digest(memory.read(step).state) == digest(state)
        with safe_open(str(memory.image(step).path), "numpy") as file:
            assert "rolemesh" in file.metadata()


def test_the_two_newest_are_kept_in_two_slots(shm):
    memory = MemorySnapshots(shm, "role", 0)
    for step in range(6):
        memory.write(step, {"x": np.full(100, step)}, log=step, persist=False)
        assert memory.steps() == (step - 1, step)[-min(2, step + 1) :]
    assert len(list(shm.glob("snap-role-0-*"))) == 2
    assert memory.read(4).state["x"][0] == 4
    with pytest.raises(SnapshotError, match=r"no snapshot of step 3, only of \[4, 5\]"):
        memory.read(3)


def test_a_pinned_snapshot_stays_until_it_is_unpinned(shm):
    memory, agent = MemorySnapshots(shm, "role", 0), MemorySnapshots(shm, "role", 0)
    for step in range(5):
        memory.write(step, {"x": np.full(100, step)}, log=0, persist=step == 1)
    assert agent.steps() == (1, 3, 4)
    assert agent.pinned() == (1,)
    assert agent.read(1).state["x"][0] == 1
    agent.unpin(1)
    memory.write(5, {"x": np.full(100, 5)}, log=0, persist=False)
    assert memory.steps() == (4, 5)
    assert len(list(shm.glob("snap-role-0-*"))) == 3


def test_two_of_many_snapshots_that_wait_for_a_slow_disk_stay(shm):
    memory = MemorySnapshots(shm, "role", 0)
    for step in range(20):
        memory.write(step, {"x": np.full(100, step)}, log=0, persist=True)
    assert memory.pinned() == (15, 19)  # see `rolemesh_checkpoint.persisting`
    assert len(list(shm.glob("snap-role-0-*"))) <= 4


def test_a_held_snapshot_is_not_overwritten(shm):
    memory, agent = MemorySnapshots(shm, "role", 0), MemorySnapshots(shm, "role", 0)
    memory.write(0, {"x": np.zeros(9)}, log=0, persist=False)
    assert agent.hold(0, "replicas")
    for step in range(1, 5):
        memory.write(step, {"x": np.full(9, step)}, log=0, persist=False)
    assert memory.steps() == (0, 3, 4)
    agent.release(0, "replicas")
    memory.write(5, {"x": np.zeros(9)}, log=0, persist=False)
    assert memory.steps() == (4, 5)
    assert not agent.hold(0, "replicas")


def test_a_read_state_does_not_change_and_may_be_written_to(shm):
    memory = MemorySnapshots(shm, "role", 0)
    memory.write(0, {"x": np.zeros(5000)}, log=0, persist=False)
    mine = memory.read(0).state["x"]
    mine[0] = 5
    for step in range(1, 6):
        memory.write(step, {"x": np.full(5000, step)}, log=0, persist=False)
    assert mine.tolist() == [5] + [0] * 4999
    assert memory.read(5).state["x"][0] == 5


def test_the_slots_of_a_dead_rank_are_used_again(shm):
    first = MemorySnapshots(shm, "role", 0)
    for step in range(3):
        first.write(step, {"x": np.full(10, step)}, log=step, persist=False)
    successor = MemorySnapshots(shm, "role", 0)
    successor.drop_after(1)
    assert successor.steps() == (1,)
    successor.write(2, {"x": np.full(1000, 20)}, log=2, persist=False)
    assert successor.read(2).state["x"].tolist() == [20] * 1000
    assert len(list(shm.glob("snap-role-0-*"))) == 2
    successor.clear()
    assert successor.steps() == ()


def test_a_stateless_rank_makes_no_slot(shm):
    memory = MemorySnapshots(shm, "role", 0)
    for step in range(4):
        memory.write(step, None, log=10 * step, persist=step == 1)
    assert memory.steps() == (1, 2, 3)
    assert memory.read(3) == (None, 30)
    assert [path.name for path in shm.iterdir()] == ["snap-role-0.index"]


def test_equal_names_on_several_ranks_do_not_meet_in_one_folder(shm):
    for rank in range(2):
        state = {
            "rng": np.full(4, rank),
            "w": Shard(np.full((2, 2), rank), (4, 2), (2 * rank, 0)),
            "a.b": 1,
            "a": {"b": np.ones(1)},
        }
        MemorySnapshots(shm, "role", rank).write(0, state, log=0, persist=False)
    with safe_open(str(shm / "snap-role-0-0"), "numpy") as one, safe_open(str(shm / "snap-role-1-0"), "numpy") as two:
        assert sorted(one.keys()) == ["a.b", "rng", "w"]
        assert sorted(two.keys()) == ["a.b@1", "rng@1", "w"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": object()}}, r"snapshot\(\)\['a'\]\['b'\] is a builtins.object"),
        ({"a": np.array([object()])}, "array of object"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
        ([1], "returned a list"),
    ],
)
def test_an_object_that_no_snapshot_can_hold_is_refused_with_its_path(shm, state, message):
    memory = MemorySnapshots(shm, "role", 0)
    memory.write(0, {"x": 1}, log=0, persist=False)
    with pytest.raises(TypeError, match=message):
        memory.write(1, state, log=0, persist=False)
    assert memory.steps() == (0,)


def test_a_slot_that_is_no_snapshot_is_refused(shm):
    memory = MemorySnapshots(shm, "role", 0)
    memory.write(0, {"x": np.zeros(9)}, log=0, persist=False)
    (shm / "snap-role-0-0").write_bytes(b"\xff" * 200)
    with pytest.raises(SnapshotError, match="no snapshot, or a damaged one"):
        memory.read(0)


WRITER = """
import sys, numpy as np
from rolemesh_checkpoint.memory import MemorySnapshots, NoRoom
memory = MemorySnapshots(sys.argv[1], "role", 0)
step = (memory.steps() or (-1,))[-1]
x = np.empty((4, 20_000))
print("on", flush=True)
while True:
    step += 1
    x[:] = step
    state = {"step": step, "x": x[: 2 + step % 3], "pad": [0] * (step % 300)}
    memory.write(step, state, log=step, persist=step % 7 == 0)
"""


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_snapshots(shm):
    last = -1
    agent = MemorySnapshots(shm, "role", 0)
    for round in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(shm)], stdout=subprocess.PIPE)
        assert writer.stdout.read(3) == b"on\n"
        until(lambda before=last: (agent.steps() or (-1,))[-1] >= before + 3, every_s=0)
        time.sleep(0.0007 * round)  # the kill falls anywhere in a write
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        steps = agent.steps()
        assert len(steps) >= 1
        assert steps[-1] >= last + 3
        for step in steps:
            found = agent.read(step)
            assert found.log == step == found.state["step"]
            assert (found.state["x"] == step).all()
        last = steps[-1]
        for step in agent.pinned():
            agent.unpin(step)


def test_a_snapshot_that_finds_no_memory_leaves_those_before_and_says_so_until_there_is_room(small_disk: Path):
    memory, agent = MemorySnapshots(small_disk, "role", 0), MemorySnapshots(small_disk, "role", 0)
    for step in range(2):
        memory.write(step, {"x": np.full(1000, step)}, log=0, persist=False)
    assert agent.refused == -1
    for step in (2, 3):
        with pytest.raises(NoRoom, match="no shared memory for a snapshot of 9 MiB"):
            memory.write(step, {"x": np.zeros(1 << 20)}, log=1, persist=False)
    assert agent.refused == 2
    assert agent.steps() == (0, 1)
    assert [memory.read(step).state["x"][0] for step in (0, 1)] == [0, 1]
    memory.write(4, {"x": np.full(2000, 4)}, log=0, persist=False)
    assert agent.refused == -1
    assert agent.steps() == (1, 4)
    assert agent.read(4).state["x"][0] == 4


@pytest.mark.parametrize("written", range(9))
def test_an_index_that_its_rank_is_just_making_has_no_entries_yet(tmp_path, written):
    path = tmp_path / "snap-work-0.index"
    path.write_bytes(b"RMSNAP01"[:written].ljust(4096, b"\0"))
    reader = MemorySnapshots(tmp_path, "work", 0)
    assert (reader.steps(), reader.refused) == ((), -1)
    writer = MemorySnapshots(tmp_path, "work", 0)
    writer.write(0, {"x": np.zeros(8)}, log=0, persist=False)
    assert reader.steps() == (0,)
    writer.close()
    reader.close()


def test_a_file_of_somebody_elses_is_no_index(tmp_path):
    (tmp_path / "snap-work-0.index").write_bytes(b"notes".ljust(4096, b"\0"))
    with pytest.raises(SnapshotError, match="this is no index of snapshots"):
        MemorySnapshots(tmp_path, "work", 0).steps()
