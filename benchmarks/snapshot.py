"""The cost of a snapshot: its copy into shared memory against memcpy, torch.save and DCP, and its restore."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, ratios
from rolemesh.api.batch import Shard
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.memory import MemorySnapshots

WARM = 3
"""Snapshots before the first that counts: both slots are then in memory."""


def measure(quick: bool) -> Report:
    """A pause of at most 1.3 × memcpy of the same bytes."""
    report = Report("snapshot", "snapshots of a rank's state", quick)
    rounds, nbytes = (2, 32 << 20) if quick else (7, 1 << 30)
    found: dict[str, list[float]] = {}
    shm = Path(tempfile.mkdtemp(prefix="bench-rolemesh-", dir=_memory()))
    folder = Path(tempfile.mkdtemp(prefix="rolemesh-bench-"))
    try:
        tensors = make_state(nbytes)
        with Sides(tensors, shm, folder) as sides:
            for number in range(rounds):
                for what, side in sides.in_turn(number):
                    found.setdefault(what, []).append(side())
    finally:
        shutil.rmtree(shm)
        shutil.rmtree(folder)
    report.row("memcpy: one numpy.copyto per tensor, warm to warm, one thread", "ms", found["memcpy"])
    report.row("pause: snapshot into shared memory", "ms", found["snapshot"])
    report.row("pause: DCP async_save", "ms", found["async"])
    report.row("pause: DCP async_save, staging buffers kept", "ms", found["async kept"])
    report.row("pause: torch.save and fsync", "ms", found["save"])
    report.row("in the background: to disk with sha256 and fsync", "ms", found["persist"])
    report.row("restore into tensors: from shared memory", "ms", found["restore memory"])
    report.row("restore into tensors: from disk, not cached", "ms", found["restore disk"])
    report.row("restore into tensors: torch.load, not cached", "ms", found["restore torch"])
    report.claim("snapshot / memcpy", ratios(found["snapshot"], found["memcpy"]), at_most=1.3)
    report.claim("torch.save and fsync / snapshot", ratios(found["save"], found["snapshot"]), at_least=1)
    report.claim("from disk / from shared memory", ratios(found["restore disk"], found["restore memory"]), at_least=1)
    shapes = sorted({tuple(t.shape) for t in tensors.values()})
    report.settings = {"bytes": sum(t.numel() * 4 for t in tensors.values()), "tensors": len(tensors), "shapes": shapes}
    report.notes.append(
        f"the first {WARM} snapshots are left out: they make the slots, whose first touch costs many times a copy; "
        "'not cached': the file's pages were dropped from the page cache before; what DCP stages dies with its process"
    )
    return report


def make_state(nbytes: int) -> dict[str, Any]:
    """float32 tensors as a transformer has them, three of each (parameter and two moments)."""
    import torch

    torch.set_num_threads(1)
    shapes = [(1024, 1024), (1024, 2816), (1024,), (512, 1024)]
    found: dict[str, Any] = {}
    size = 0
    while size < nbytes:
        shape = shapes[len(found) // 3 % len(shapes)]
        for kind in ("model", "exp_avg", "exp_avg_sq"):
            tensor = found[f"{kind}.{len(found) // 3}"] = torch.rand(shape)
            size += tensor.numel() * 4
    return found


class Sides:
    """The sides that take turns. Each side does its work once and returns the milliseconds that count."""

    def __init__(self, tensors: Mapping[str, Any], shm: Path, folder: Path) -> None:
        self.tensors = dict(tensors)
        self.shm, self.folder = shm, folder
        self.copy = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        self.memory = MemorySnapshots(shm, "trainer", 0)
        self.step = 0

    def __enter__(self) -> Sides:
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        for _ in range(WARM):
            self.snapshot()
        self.async_kept()
        return self

    def __exit__(self, *_: object) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    def in_turn(self, number: int) -> list[tuple[str, Callable[[], float]]]:
        """The sides, in an order that changes from round to round."""
        sides = [
            ("memcpy", self.memcpy),
            ("snapshot", self.snapshot),
            ("async", self.async_save),
            ("async kept", self.async_kept),
            ("save", self.save),
        ]
        turn = number % len(sides)
        restores = [
            ("persist", self.persist),
            ("restore memory", self.restore_memory),
            ("restore disk", self.restore_disk),
            ("restore torch", self.restore_torch),
        ]
        return sides[turn:] + sides[:turn] + restores

    def memcpy(self) -> float:
        began = time.perf_counter()
        for name, tensor in self.tensors.items():
            np.copyto(self.copy[name], tensor.numpy())
        return _ms(began)

    def snapshot(self) -> float:
        state = {name: Shard(t, t.shape, (0,) * t.ndim) for name, t in self.tensors.items()}
        began = time.perf_counter()
        self.memory.write(self.step, state, log=0, persist=False)
        self.step += 1
        return _ms(began)

    def async_save(self) -> float:
        import torch.distributed.checkpoint as dcp

        began = time.perf_counter()
        future = dcp.async_save(self.tensors, storage_writer=dcp.FileSystemWriter(str(self.folder / "dcp")))
        pause = _ms(began)
        _result(future)
        shutil.rmtree(self.folder / "dcp")
        return pause

    def async_kept(self) -> float:
        import torch.distributed.checkpoint as dcp

        writer = dcp.FileSystemWriter(str(self.folder / "dcp"))
        began = time.perf_counter()
        future = dcp.async_save(self.tensors, storage_writer=writer, async_stager=self.stager)
        pause = _ms(began)
        _result(future)
        shutil.rmtree(self.folder / "dcp")
        return pause

    def save(self) -> float:
        import torch

        began = time.perf_counter()
        with open(self.folder / "torch.pt", "wb") as file:
            torch.save(self.tensors, file)
            file.flush()
            os.fsync(file.fileno())
        return _ms(began)

    def persist(self) -> float:
        """Do the persister's work for a slot: copy, checksum, fsync."""
        image = self.memory.image(self.step - 1)
        assert image is not None
        assert image.path is not None
        name = disk.state_file("trainer", 0, 1)
        path = disk.step_folder(self.folder, 0) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        sha = hashlib.sha256()
        with open(image.path, "rb") as source, open(path, "wb") as target:
            while piece := source.read(1 << 20):
                sha.update(piece)
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        spent = _ms(began)
        files = {name: (image.size, sha.hexdigest())}
        self.origin = disk.write_manifest(self.folder, disk.Manifest("b", "b", 0, 1, {"trainer": 1}, files))
        return spent

    def restore_memory(self) -> float:
        began = time.perf_counter()
        state = MemorySnapshots(self.shm, "trainer", 0).read(self.step - 1).state
        self._take({name: shard.data for name, shard in (state or {}).items()})
        return _ms(began)

    def restore_disk(self) -> float:
        _drop(self.origin / disk.state_file("trainer", 0, 1))
        began = time.perf_counter()
        state = disk.load(self.origin, "trainer", 0, 1, dict).state
        self._take({name: shard.data for name, shard in (state or {}).items()})
        return _ms(began)

    def restore_torch(self) -> float:
        import torch

        _drop(self.folder / "torch.pt")
        began = time.perf_counter()
        self._take(torch.load(self.folder / "torch.pt", weights_only=True))
        return _ms(began)

    def _take(self, found: Mapping[str, Any]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(found[name])


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _result(future: Any) -> None:
    (getattr(future, "upload_completion", None) or future).result()


def _drop(path: Path) -> None:
    """Drop a file's pages from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
