"""Counters of this node, from Linux and NVML: processor time, memory, bytes over the network, and GPUs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh_recorder.usage import GPU, Usage

__all__ = ["GPUs", "Meter", "cores_used", "memory_used", "network_bytes"]

LOG = logging.getLogger(__name__)
PROC, GROUPS, INTERFACES = Path("/proc"), Path("/sys/fs/cgroup"), Path("/sys/class/net")


class Group(NamedTuple):
    """The control group whose limit is the smallest: its folder, the limit, and whether it is of version 2."""

    folder: Path
    limit: float
    two: bool


class Meter:
    """Makes the lines of a node, one after the other without a gap."""

    def __init__(self) -> None:
        """The first line begins now."""
        self._gpus = GPUs()
        self._cores, self._memory = _limited("cpu"), _limited("memory")
        self._now = self._read()

    def next(self) -> Usage:
        """Return what the node did since the last call. Raises `OSError` and `ValueError`."""
        before, self._now = self._now, self._read()
        wall, moment, busy, received, sent = self._now
        took = max(1, moment - before[1])
        total = self._cores.limit if self._cores else float(os.cpu_count() or 1)
        cores = round(max(0.0, busy - before[2]) * 1e9 / took, 3)
        return Usage(
            (wall - took) // 1000,
            took // 1000,
            cores,
            total,
            *memory_used(self._memory),
            max(0, received - before[3]),
            max(0, sent - before[4]),
            self._gpus.look(),
        )

    def _read(self) -> tuple[int, int, float, int, int]:
        return time.time_ns(), time.monotonic_ns(), cores_used(self._cores), *network_bytes()


class GPUs:
    """The GPUs of this node, through NVML, if the package nvidia-ml-py is installed."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[tuple[int, str, Any]] = []
        try:
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            for index in range(self._nvml.nvmlDeviceGetCount()):
                with suppress(self._nvml.NVMLError):  # a device that has failed does not hide the others
                    device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                    name = self._nvml.nvmlDeviceGetName(device)
                    self._devices.append((index, name.decode() if isinstance(name, bytes) else name, device))
        except ImportError:
            pass
        except self._nvml.NVMLError as error:
            LOG.info("NVML tells nothing of this node's GPUs: %s", error)

    def look(self) -> tuple[GPU, ...]:
        """Return what each GPU does now."""
        return tuple(self._look(*each) for each in self._devices)

    def _look(self, index: int, name: str, device: Any) -> GPU:
        nvml = self._nvml
        busy = memory = total = celsius = None
        with suppress(nvml.NVMLError):
            busy = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
        with suppress(nvml.NVMLError):
            held = nvml.nvmlDeviceGetMemoryInfo(device)
            memory, total = int(held.used), int(held.total)
        with suppress(nvml.NVMLError):
            celsius = float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
        return GPU(index, busy, memory, total, celsius, name)


def cores_used(group: Group | None) -> float:
    """Return the seconds of processor time that the group, or the machine, has used; waiting for disks is none."""
    if group is None:
        with (PROC / "stat").open() as file:
            ticks = [int(each) for each in file.readline().split()[1:9]]  # guests are in the first two already
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    if group.two:
        return _named(group.folder / "cpu.stat", "usage_usec") / 1e6
    return int((GROUPS / "cpuacct" / group.folder.relative_to(GROUPS / "cpu") / "cpuacct.usage").read_text()) / 1e9


def memory_used(group: Group | None) -> tuple[int, int]:
    """Return the bytes that the group, or the machine, has in use, and its limit."""
    if group is None:
        total, available = (_named(PROC / "meminfo", name) * 1024 for name in ("MemTotal:", "MemAvailable:"))
        return total - available, total
    name, dropped = ("memory.current", "inactive_file") if group.two else (
        "memory.usage_in_bytes", "total_inactive_file"
    )  # fmt: skip
    held = int((group.folder / name).read_text())
    return max(0, held - _named(group.folder / "memory.stat", dropped)), int(group.limit)


def network_bytes() -> tuple[int, int]:
    """Return the bytes that this node has received and sent over its network devices.

    Bridges, bonds and pairs of a container engine would count the same bytes again. In a container they are all there
    is, so without a device all interfaces but loopback count.
    """
    found: dict[str, tuple[int, int]] = {}
    with (PROC / "net" / "dev").open() as file:
        for line in file:
            name, colon, counts = line.partition(":")
            if colon and name.strip() != "lo":
                columns = counts.split()
                found[name.strip()] = int(columns[0]), int(columns[8])
    devices = [each for name, each in found.items() if (INTERFACES / name / "device").exists()]
    counted = devices or list(found.values())
    return sum(received for received, _ in counted), sum(sent for _, sent in counted)


def _named(path: Path, name: str) -> int:
    """Return the number after a name at the beginning of a line."""
    with path.open() as file:
        for line in file:
            words = line.split(maxsplit=2)
            if words[:1] == [name]:
                return int(words[1])
    raise ValueError(f"{path} has no line {name}")


def _limited(controller: str) -> Group | None:
    """Return the control group of this process that limits cores or memory; None if the machine is the limit."""
    try:
        machine = float(os.cpu_count() or 1) if controller == "cpu" else float(memory_used(None)[1])
        found = [each for each in _groups(controller) if 0 < each.limit < machine]
        least = min(found, key=lambda each: each.limit, default=None)
        _ = cores_used(least) if controller == "cpu" else memory_used(least)
    except (OSError, ValueError):
        return None  # a limit without counters
    return least


def _groups(controller: str) -> Iterator[Group]:
    """Yield the groups of this process that have a limit, of both versions, from its own one up to the root."""
    for line in (PROC / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            with suppress(OSError, ValueError, ZeroDivisionError):
                yield Group(folder, _limit(folder, controller, two=not controllers), not controllers)


def _limit(folder: Path, controller: str, *, two: bool) -> float:
    """Return a group's cores or bytes. Raises `OSError` or `ValueError` if it has no limit."""
    if controller == "memory":
        limits = []
        for name in ("memory.max", "memory.high") if two else ("memory.limit_in_bytes",):
            with suppress(OSError, ValueError):
                limits.append(float((folder / name).read_text()))
        return min(limits)
    if two:
        quota, period = (folder / "cpu.max").read_text().split()
    else:
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return float(quota) / float(period)
