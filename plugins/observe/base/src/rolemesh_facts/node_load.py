"""The load of a node as shares over time, with the latest values in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rolemesh_console.text import amount
from rolemesh_facts.series import Points
from rolemesh_recorder.usage import GPU, Usage

__all__ = ["Load", "loads"]

NETWORK: Final = "network"


class Load(NamedTuple):
    """One kind of load. `points` are times in seconds since the first line, and shares from 0 to 1.

    The network's largest rate is 1, because its capacity is not known.
    """

    what: str
    said: str
    points: Points


def loads(lines: Sequence[Usage]) -> list[Load]:
    """Return the loads of a node's lines, which are in the order of time: cores, memory, each GPU, the network."""
    if not lines:
        return []
    last, times = lines[-1], [(line.t + line.d - lines[0].t) // 1_000_000 for line in lines]
    said, held = f"{last.cores:.1f} of {last.cores_total:g}", f"{amount(last.memory)} of {amount(last.memory_total)}"
    found = [
        Load("cores", said, (times, [_share(line.cores, line.cores_total) for line in lines])),
        Load("memory", held, (times, [_share(line.memory, line.memory_total) for line in lines])),
    ]
    for gpu in last.gpus:
        known = [(time, each) for time, line in zip(times, lines, strict=True) for each in line.gpus]
        busy = [(time, each.busy) for time, each in known if each.index == gpu.index and each.busy is not None]
        found.append(Load(f"GPU {gpu.index}", _said(gpu), ([time for time, _ in busy], [share for _, share in busy])))
    rates = [(line.received + line.sent) / max(1, line.d) for line in lines]
    if any(rates):
        said = f"{amount(int(rates[-1] * 1e6))}/s"
        found.append(Load(NETWORK, said, (times, [_share(rate, max(rates)) for rate in rates])))
    return found


def _said(gpu: GPU) -> str:
    parts = [
        f"{gpu.busy:.0%} busy" if gpu.busy is not None else "",
        f"{amount(gpu.memory)} of {amount(gpu.memory_total)}" if gpu.memory is not None and gpu.memory_total else "",
        f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "",
        gpu.name,
    ]
    return ", ".join(filter(None, parts))


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0
