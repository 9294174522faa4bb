"""Fixtures of several rooms: folders of runs and of snapshots, and a master's outside."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import waiting
from tests.unit.engine.master_outside import MasterOutside

from rolemesh_checkpoint import disk
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_durable.protocol.messages import Persisted


@pytest.fixture
def shm() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snapshot-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def manifest(run_dir: Path) -> Callable[..., Path]:
    """``manifest(step, world_sizes, parts)`` makes a checkpoint complete, as the master does.

    A part is what an agent has persisted, or the files of a rank under their final names.
    """

    def make(step: int, world_sizes: dict[str, int], parts: list[Persisted | dict[str, tuple[int, str]]]) -> Path:
        named = [part if isinstance(part, Persisted) else Persisted("", 0, step, part) for part in parts]
        listed = {name: found for part in named for name, found in part.files.items()}
        attempts = {name: part.attempt for part in named for name in part.files}
        disk.step_folder(run_dir, step).mkdir(parents=True, exist_ok=True)
        return disk.write_manifest(run_dir, disk.Manifest("job", "id", step, 100, world_sizes, listed), attempts)

    return make


@pytest.fixture
def persisted(shm: Path, run_dir: Path, manifest: Callable[..., Path]) -> Callable[..., Path]:
    """``persisted(step, world_sizes, state of (rank, world size, step))`` writes a whole checkpoint; returns its
    folder."""

    def make(step: int, world_sizes: dict[str, int], state: Callable[[int, int, int], Any]) -> Path:
        files = []
        for role, size in world_sizes.items():
            for rank in range(size):
                memory = MemorySnapshots(shm, role, rank)
                memory.clear()
                memory.write(step, state(rank, size, step), log=0, persist=False)
                path = memory.image(step).path
                if path is not None:
                    name = disk.state_file(role, rank, size)
                    copy = disk.step_folder(run_dir, step) / name
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    data = path.read_bytes()
                    copy.write_bytes(data)
                    files.append({name: (len(data), hashlib.sha256(data).hexdigest())})
        return manifest(step, world_sizes, files)

    return make


@pytest.fixture
def until() -> Callable[..., Any]:
    """`tests.waiting.until`, which looks every two milliseconds."""
    return partial(waiting.until, every_s=0.002)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs folder that the command line sees."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("ROLEMESH_RUNS", str(folder))
    return folder


@pytest.fixture
def start_master(runs: Path) -> Iterator[Callable[..., MasterOutside]]:
    """Starts masters in `runs`, and ends them after the test."""
    started: list[MasterOutside] = []

    def start(name: str = "grpo", remembers: int = 1000) -> MasterOutside:
        started.append(MasterOutside(runs, name, remembers))
        return started[-1]

    yield start
    for master in started:
        master.close()
