"""This machine as a node, and nodes from a description:
``4x(cpu=32,gpu=8),2x(cpu=16,label.rack=a)``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.errors import PlacementError, nearest

GROUP = re.compile(r"(?:(\d+)\s*[xX]\s*)?\(([^()]*)\)")
EXAMPLE = "write e.g. '4x(cpu=32,gpu=8),2x(cpu=16,custom.ssd=1,label.rack=a)'"


def parse_nodes(text: str) -> ClusterView:
    """Return groups of equal nodes, named node-0, node-1, … in order.

    ``custom.NAME`` and ``label.NAME`` may be repeated. ``memory_gb`` is a custom resource of that
    name. Raises `PlacementError` with the invalid part.
    """
    nodes = list[NodeView]()
    rest = text.strip()
    while match := GROUP.match(rest):
        nodes += [
            _node(f"node-{len(nodes) + n}", match[2], text) for n in range(int(match[1] or 1))
        ]
        rest = rest[match.end() :].lstrip()
        if not rest and nodes:
            return ClusterView(tuple(nodes))
        if not rest:
            raise PlacementError("--nodes describes no node", where=text, remedy=EXAMPLE)
        if not rest.startswith(","):
            what = f"--nodes: a comma is missing before {rest!r}"
            raise PlacementError(what, where=text, remedy=EXAMPLE)
        rest = rest[1:].lstrip()
    raise PlacementError(
        f"--nodes: {rest or text!r} is no group of nodes", where=text, remedy=EXAMPLE
    )


def _node(name: str, text: str, where: str) -> NodeView:
    amounts = {"cpu": 1.0, "gpu": 0.0}
    custom: dict[str, float] = {}
    labels: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = (part.strip() for part in pair.partition("="))
        if not separator or not value:
            raise PlacementError(f"--nodes: {pair!r} is not key=value", where=where, remedy=EXAMPLE)
        prefix, _, short = key.partition(".")
        if prefix == "label" and short:
            labels[short] = value
        elif key == "memory_gb" or (prefix == "custom" and short):
            custom[short or key] = _number(key, value, where)
        elif key in amounts:
            amounts[key] = _number(key, value, where)
        else:
            remedy = nearest(key, [*amounts, "memory_gb", "custom.NAME", "label.NAME"])
            raise PlacementError(f"--nodes: unknown key {key!r}", where=where, remedy=remedy)
    if amounts["gpu"] % 1:
        raise PlacementError("--nodes: a node has whole GPUs", where=where, remedy=EXAMPLE)
    return NodeView(name, cpu=amounts["cpu"], gpu=int(amounts["gpu"]), custom=custom, labels=labels)


def _number(key: str, text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise PlacementError(
            f"--nodes: {key} is {text!r}, not an amount", where=where, remedy=EXAMPLE
        )
    return number


def this_machine() -> ClusterView:
    """Return one node with the cores and the memory that this process may use, and with the GPUs
    that ``/dev/nvidia*`` shows."""
    gpus = len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])
    memory = {"memory_gb": memory_limit() // 10**8 / 10}
    return ClusterView((NodeView("local", "127.0.0.1", cpu_limit(), gpus, memory),))


def memory_limit() -> float:
    """Return the bytes of memory that this process may use: the least of the machine's memory and
    the limits of its control groups."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        limits += [numbers[0] for numbers in group_limits(name)]
    return min(limits)


def cpu_limit() -> float:
    """Return the cores that this process may use, at least 1: the least of those that it may run on
    and the quotas of its control groups."""
    quotas = [*group_limits("cpu.max"), *group_limits("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    cores = [quota / period for quota, period in quotas if quota > 0]
    return max(1.0, min([float(len(os.sched_getaffinity(0))), *cores]))


def group_limits(*names: str) -> Iterator[list[float]]:
    """Yield the numbers in these files of each control group of this process, of version 1 and 2,
    from its own group up to the root. A group that lacks a file or sets no limit is left out."""
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, group = line.split(":", 2)
        if {"", names[0].partition(".")[0]} & {*controllers.split(",")}:
            roots = [controllers] if controllers else ["", "unified"]
            for own in (Path(f"/sys/fs/cgroup/{root}/{group}") for root in roots):
                for folder in (own, *own.parents):
                    with suppress(OSError, ValueError):
                        texts = [(folder / name).read_text().split() for name in names]
                        yield [float(number) for text in texts for number in text]
