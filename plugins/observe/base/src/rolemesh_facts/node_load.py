"""The load of nodes and of inference engines over time, with the latest amounts in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rolemesh_console.text import amount
from rolemesh_facts.series import Points
from rolemesh_recorder.usage import GPU, Usage, joined

__all__ = ["NETWORK", "Load", "engine_load", "engine_names", "fewer", "loads"]

NETWORK: Final = "network"
ENGINE: Final[Mapping[str, str]] = {
    "requests_running": "requests", "requests_waiting": "requests", "kv_cache_usage": "",
    "preemptions": "per step", "generated_tokens_per_s": "tokens/s",
}  # fmt: skip
"""Units of what an engine reports about itself, by the ends of the names of metrics. A share has none."""


class Load(NamedTuple):
    """One kind of load. `parts` are times, durations in µs, and amounts; a time is µs since 1970.

    `full` is the capacity in `unit`, and 1 for a share, which has no unit. If the capacity is not known, `full` is the
    largest amount. `said` has the latest amount in words; "" for an engine.
    """

    what: str
    said: str
    unit: str
    full: float
    parts: list[tuple[int, int, float]]

    @property
    def shares(self) -> Points:
        """Times in ms since the first line, and shares from 0 to 1: at the begin of the first part, and at the ends."""
        if not self.parts:
            return [], []
        begin = self.parts[0][0]
        shares = [min(1.0, part / self.full) if self.full > 0 else 0.0 for _, _, part in self.parts]
        return [0, *((t + d - begin) // 1000 for t, d, _ in self.parts)], [shares[0], *shares]


def loads(lines: Sequence[Usage]) -> list[Load]:
    """Return the loads of a node's lines, which are in the order of time: cores, memory, each GPU, the network."""
    if not lines:
        return []
    last = lines[-1]
    said, held = f"{last.cores:.1f} of {last.cores_total:g}", _of(last.memory, last.memory_total)
    found = [
        Load("cores", said, "cores", last.cores_total, [(line.t, line.d, line.cores) for line in lines]),
        Load("memory", held, "B", last.memory_total, [(line.t, line.d, line.memory) for line in lines]),
    ]
    for gpu in last.gpus:
        known = [(line, each) for line in lines for each in line.gpus if each.index == gpu.index]
        busy = [(line.t, line.d, each.busy) for line, each in known if each.busy is not None]
        memory = [(line.t, line.d, float(each.memory)) for line, each in known if each.memory is not None]
        found.append(Load(f"GPU {gpu.index}", _said(gpu), "", 1.0, busy))
        if gpu.memory is not None and gpu.memory_total:
            said = _of(gpu.memory, gpu.memory_total)
            found.append(Load(f"GPU {gpu.index} memory", said, "B", gpu.memory_total, memory))
    rates = [(line.t, line.d, (line.received + line.sent) * 1e6 / max(1, line.d)) for line in lines]
    if most := max(rate for _, _, rate in rates):
        found.append(Load(NETWORK, f"{amount(int(rates[-1][2]))}/s", "B/s", most, rates))
    return found


def fewer(lines: Sequence[Usage], most: int) -> Sequence[Usage]:
    """Return at most `most` lines for those of a node: neighbours become one."""
    while len(lines) > most:
        lines = list(joined(lines))
    return lines


def engine_names(names: Iterable[str]) -> list[str]:
    """Return the names of metrics in which inference engines report about themselves, by what they report."""
    known = sorted(names)
    return [name for end in ENGINE for name in known if name == end or name.endswith(f"_{end}")]


def engine_load(name: str, points: Points, times: Mapping[int, int], since: int, until: int, most: int) -> Load:
    """Return what inference engines report in the metric `name`, from `since` to `until`, in at most `most` parts.

    `times` has the end of each line of metrics by its step, in order. A part lasts from the line before it to its own.
    """
    unit = next(unit for end, unit in ENGINE.items() if name.endswith(end))
    values, parts, begin = dict(zip(*points, strict=True)), list[tuple[int, int, float]](), since
    for step, end in times.items():
        value = values.get(step, math.nan)
        if begin < end and since < end and begin < until and math.isfinite(value):
            parts.append((begin, end - begin, value))
        begin = max(begin, end)
    while len(parts) > most:
        parts = [_sum(parts[place : place + 2]) for place in range(0, len(parts), 2)]
    full = max((value for _, _, value in parts), default=0.0) if unit else 1.0
    return Load(name, "", unit, full, parts)


def _sum(parts: Sequence[tuple[int, int, float]]) -> tuple[int, int, float]:
    """Return one part for neighbours, with their mean over time."""
    took = sum(d for _, d, _ in parts)
    return parts[0][0], parts[-1][0] + parts[-1][1] - parts[0][0], sum(d * value for _, d, value in parts) / took


def _of(part: int, whole: int) -> str:
    return f"{amount(part)} of {amount(whole)}"


def _said(gpu: GPU) -> str:
    parts = [
        f"{gpu.busy:.0%} busy" if gpu.busy is not None else "",
        f"{gpu.celsius:.0f} °C" if gpu.celsius is not None else "",
        gpu.name,
    ]
    return ", ".join(filter(None, parts))
