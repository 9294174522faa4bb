"""The speed of a node. The best of several rounds counts, because other processes only make it slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rolemesh_durable.checks import Check, CheckedNode, CheckOptions

__all__ = ["MatmulCheck", "MatmulOptions", "MemoryCheck", "MemoryOptions"]


class MemoryOptions(CheckOptions):
    """Size of the copied array, and the limit."""

    slower: float | None = Field(default=3.0, gt=1, description="See every check; here 3 by default.")
    mb: int = Field(default=64, ge=1, description="Size of the copied array in 2^20 bytes, larger than the caches.")
    rounds: int = Field(default=5, ge=1, description="Number of rounds; the best one counts.")


class MemoryCheck(Check):
    """Copies an array with one core. ``gb_per_s`` is the data read and written, in 10^9 bytes per second."""

    Options = MemoryOptions
    options: MemoryOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`."""
        source = np.ones(self.options.mb << 20, np.uint8)
        target = np.empty_like(source)
        seconds = best(lambda: np.copyto(target, source), self.options.rounds)
        return {"gb_per_s": 2 * source.nbytes / seconds / 1e9}


class MatmulOptions(CheckOptions):
    """Size of the matrices, the devices, and the limit."""

    slower: float | None = Field(default=3.0, gt=1, description="See every check; here 3 by default.")
    size: int = Field(default=1024, ge=1, description="Rows and columns of the matrices, of float32.")
    rounds: int = Field(default=5, ge=1, description="Number of rounds; the best one counts.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: every GPU that torch sees, or the processors if there is none."
    )


class MatmulCheck(Check):
    """Multiplies matrices. ``gflop_per_s`` is that of the slowest GPU, or of all cores that numpy uses."""

    Options = MatmulOptions
    options: MatmulOptions

    def measure(self, node: CheckedNode) -> dict[str, float]:
        """See `Check.measure`."""
        devices = [] if self.options.device == "cpu" else gpus(required=self.options.device == "cuda")
        return {"gflop_per_s": min([self._on(device) for device in devices] or [self._on_cpu()])}

    def _on_cpu(self) -> float:
        matrix = np.ones((self.options.size, self.options.size), np.float32)
        product = np.empty_like(matrix)
        return self._rate(lambda: np.matmul(matrix, matrix, out=product))

    def _on(self, device: Any) -> float:
        import torch

        matrix = torch.ones(self.options.size, self.options.size, device=device)
        product = torch.empty_like(matrix)

        def multiply() -> None:
            torch.matmul(matrix, matrix, out=product)
            torch.cuda.synchronize(device)

        return self._rate(multiply)

    def _rate(self, multiply: Callable[[], object]) -> float:
        multiply()  # threads and kernels are made at first
        return 2.0 * self.options.size**3 / best(multiply, self.options.rounds) / 1e9


def best(work: Callable[[], object], rounds: int) -> float:
    """Return the shortest time of `work` in seconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)


def gpus(*, required: bool) -> list[Any]:
    """Return the devices that torch sees; none if torch is missing, unless they are `required`."""
    try:
        import torch
    except ModuleNotFoundError:
        if required:
            raise
        return []
    found = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if required and not found:
        raise RuntimeError("torch sees no GPU on this node")
    return found
