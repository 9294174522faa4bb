"""The states of the global random generators of a trainer's process: torch, numpy and Python, as tensors and arrays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["generator_states", "restore_generators", "seed_generators"]


def seed_generators(seed: int) -> None:
    """Seed all of them with `seed`, in [0, 2**63)."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return their states by name: ``cpu`` and, on a GPU, ``cuda`` (uint8 tensors), ``numpy`` and ``python`` (uint32
    arrays).

    An array holds the words of the Mersenne Twister, the position, whether a normal variate waits, and that variate.
    """
    states: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    _, words, position, waits, variate = np.random.get_state(legacy=True)
    states["numpy"] = np.array([*words, position, waits, *_halves(variate)], np.uint32)
    _, python, gauss = random.getstate()
    states["python"] = np.array([*python, gauss is not None, *_halves(gauss or 0.0)], np.uint32)
    return states


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states that `states` has. A snapshot of an older version has fewer."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in states:
        *words, position, waits, low, high = np.asarray(states["numpy"]).tolist()
        np.random.set_state(("MT19937", np.array(words, np.uint32), position, waits, _joined(low, high)))
    if "python" in states:
        *python, waits, low, high = np.asarray(states["python"]).tolist()
        random.setstate((3, tuple(python), _joined(low, high) if waits else None))


def _halves(number: float) -> list[int]:
    """Return a float64 as two words of 32 bits."""
    halves: list[int] = np.array([number], np.float64).view(np.uint32).tolist()
    return halves


def _joined(low: int, high: int) -> float:
    """Return the float64 of two words."""
    return float(np.array([low, high], np.uint32).view(np.float64)[0])
