"""Workloads that say by how much their process grows while they are set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolemesh.api.workload import RankContext
from rolemesh_deepspeed import DeepSpeedWorkload
from rolemesh_fsdp import FSDPWorkload
from rolemesh_training.workload import TrainerWorkload

__all__ = ["DeepSpeed", "FSDP", "rose"]


class _Measured(TrainerWorkload):
    grown: int
    """Bytes by which the peak of the resident memory in `setup` was above what there had been before."""

    def setup(self, ctx: RankContext[Any]) -> None:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
        super().setup(ctx)
        self.grown = resident("VmHWM") - before


class FSDP(_Measured, FSDPWorkload): ...


class DeepSpeed(_Measured, DeepSpeedWorkload): ...


def resident(which: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def rose(workload: _Measured, ctx: RankContext[Any]) -> int:
    """A scenario: see `grown`."""
    return workload.grown
