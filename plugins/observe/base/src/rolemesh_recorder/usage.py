"""The load of each node as lines of a file: ``record/nodes/NODE.jsonl``. Its name is quoted as in a URL.

Each line is a `Usage`. When the file is full, the recorder joins every two neighbouring lines, so old ones are longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_recorder.lines import RECORD_DIR
from rolemesh_runtime.run_files import names_in, open_in

__all__ = ["GPU", "KnownUsage", "Usage", "decode_usage", "joined", "node_file", "read_usage", "recorded_nodes"]

NODES_DIR = "nodes"
SUFFIX = ".jsonl"
HEAD_BYTES = 64
"""Bytes at the begin of a file that have the time and the duration of its first line."""
MOST_KNOWN = 16
"""Number of nodes whose lines `KnownUsage` keeps: the latest ones."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
"""A line with a value beyond this is damage."""
Number = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class GPU(msgspec.Struct, frozen=True, omit_defaults=True):
    """A GPU of a node, by NVML's number. A value that it does not offer is None.

    `busy` is the share of the time in which a kernel ran, `memory` and `memory_total` are bytes, `celsius` is the
    temperature.
    """

    index: Count
    busy: Number | None = None
    memory: Count | None = None
    memory_total: Count | None = None
    celsius: Number | None = None
    name: str = ""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of a node in the `d` µs from `t` (µs since 1970) on.

    If a control group limits the job's cores or memory there, the numbers are those of the group, otherwise those of
    the machine.

    - `cores`: mean number of cores that were busy, of `cores_total`.
    - `memory`: largest number of bytes in use, of `memory_total`. Files that the kernel can drop do not count.
    - `received`, `sent`: bytes over the network's devices; if a node shows none, over all interfaces but loopback.
    """

    t: Count
    d: Count
    cores: Number
    cores_total: Number
    memory: Count
    memory_total: Count
    received: Count = 0
    sent: Count = 0
    gpus: tuple[GPU, ...] = ()


_decoder = msgspec.json.Decoder(Usage)


def decode_usage(line: bytes) -> Usage | None:
    """Return a line of a node's file; None if it is damaged."""
    try:
        found: Usage = _decoder.decode(line)
    except UNDECODABLE:
        return None
    return found


def node_file(run_dir: Path, node: str) -> Path:
    """Return the file of a node."""
    return run_dir / RECORD_DIR / NODES_DIR / f"{quote(node, safe='')}{SUFFIX}"


def recorded_nodes(run_dir: Path) -> list[str]:
    """Return the names of the nodes that have a file, sorted."""
    with suppress(OSError):
        names = names_in(run_dir, RECORD_DIR, NODES_DIR)
        return sorted(unquote(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
    return []


def read_usage(run_dir: Path, node: str) -> Iterator[Usage]:
    """Yield the lines of a node, in the order of time. Damaged ones are left out."""
    with suppress(OSError), open_in(run_dir, RECORD_DIR, NODES_DIR, node_file(run_dir, node).name) as file:
        for raw in file:
            if raw.endswith(b"\n") and (line := decode_usage(raw)) is not None:
                yield line


class KnownUsage:
    """The lines of nodes of a run. A file that has grown since it was read is read on, and not once more."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, tuple[bytes, int, list[Usage]]] = {}
        """The begin of a file, the byte behind its last line, and its lines, by node."""

    def lines(self, node: str) -> Sequence[Usage]:
        """Return the lines of a node, in the order of time; none if it has no file."""
        head, end, found = self._known.pop(node, (b"", 0, list[Usage]()))
        with (
            suppress(OSError),
            open_in(self._run_dir, RECORD_DIR, NODES_DIR, node_file(self._run_dir, node).name) as file,
        ):
            if (begin := file.read(HEAD_BYTES)) != head:  # the recorder has joined lines
                head, end, found = begin, 0, []
            file.seek(end)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            found += [line for raw in whole.splitlines() if (line := decode_usage(raw)) is not None]
            self._known[node] = head, end + len(whole), found
            for old in list(self._known)[:-MOST_KNOWN]:
                del self._known[old]
        return found


def joined(lines: Iterable[Usage]) -> Iterator[Usage]:
    """Yield a line for every two neighbours. Times and bytes over the network are their sums; others are means over
    time, but memory and temperature are the larger ones."""
    several = iter(lines)
    for one, two in zip_longest(several, several):
        yield one if two is None else _sum(one, two)


def _sum(one: Usage, two: Usage) -> Usage:
    known = {gpu.index: gpu for gpu in one.gpus}
    return Usage(
        one.t,
        max(0, two.t + two.d - one.t),
        round(_mean(one.cores, one.d, two.cores, two.d), 3),
        two.cores_total,
        max(one.memory, two.memory),
        two.memory_total,
        one.received + two.received,
        one.sent + two.sent,
        tuple(_both(known.get(gpu.index), one.d, gpu, two.d) for gpu in two.gpus),
    )


def _both(one: GPU | None, one_d: int, two: GPU, two_d: int) -> GPU:
    if one is None:
        return two
    busy = two.busy if one.busy is None else one.busy
    if one.busy is not None and two.busy is not None:
        busy = round(_mean(one.busy, one_d, two.busy, two_d), 3)
    most = [max((each for each in pair if each is not None), default=None) for pair in (
        (one.memory, two.memory), (one.celsius, two.celsius)
    )]  # fmt: skip
    return GPU(two.index, busy, None if most[0] is None else int(most[0]), two.memory_total, most[1], two.name)


def _mean(one: float, one_d: int, two: float, two_d: int) -> float:
    return (one * one_d + two * two_d) / max(1, one_d + two_d)
