"""The lines of a record: one JSON object per line, told apart by ``k``.

A run's folder has ``record/flow.json``, and ``record/ROLE-RANK/NNNNNN.jsonl`` with the parts of a rank's record in the
order of their numbers. Each part begins with a `Head`. Times are µs since 1970: the wall clock at the start of the
process plus the monotonic time since then, so a step of the wall clock changes nothing within a process.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE

__all__ = ["FLOW_FILE", "RECORD_DIR", "Account", "FlowEdge", "FlowFile", "FlowOp", "Head", "Life", "Line", "Stretch"]
__all__ += ["decode", "decode_lines", "encode", "rank_folder"]

RECORD_DIR = "record"
FLOW_FILE = "flow.json"


class Head(msgspec.Struct, tag_field="k", tag="head", frozen=True):
    """The process that writes a part: rank `rank` of `role`, start number `generation`, from `t` on.

    `coarse` is 0 for a part as it was written. It grows by one each time the recorder makes an old part smaller.
    """

    role: str
    rank: int
    generation: int
    pid: int
    node: str
    t: int
    coarse: int = 0
    version: int = 1


class Life(msgspec.Struct, tag_field="k", tag="life", frozen=True):
    """A phase of the process before its first step, from `t` for `d` µs: ``starting``, ``setup``, or ``restoring``."""

    what: str
    t: int
    d: int


class Stretch(msgspec.Struct, tag_field="k", tag="span", frozen=True, omit_defaults=True):
    """The rank was in one phase from `t` for `d` µs: see `rolemesh_durable.api.extensions.Span`.

    `op` and `edge` are numbers in the flow, -1 for none. An edge below -1 stands for a call. A stretch may lie within
    another one.
    """

    phase: str
    t: int
    d: int
    step: int
    op: int = -1
    edge: int = -1


class Account(msgspec.Struct, tag_field="k", tag="account", frozen=True, omit_defaults=True):
    """The use of the `d` µs from `t` on: µs by name. Stretches and short times both count here.

    The names are ``computing``, ``saving`` (snapshots), ``idle`` (until the master lets it run further), ``edge N`` (a
    wait for a value of edge N, or for a consumer that takes one), ``memory``, ``turn``, ``loading`` (for a turn, or
    making room), ``gathering``, ``calling``, ``serving`` and ``following`` (a service waits for its callers). The rest
    of `d` is time of the engine. A number below 0 corrects earlier accounts.

    - `steps`: steps that ended in this time; `step`: the last finished one.
    - `least`: stretches that are shorter than this, in µs, have no line.
    - `sent`: for each edge at which the rank produces, the bytes that it sent in this time, and at its end the values
      that some consumer has not released, and the values that it may still send (-1: only their bytes are limited). A
      part for several consumers counts once.
    - `queued`: for each edge at which it consumes, the complete values at the end that no step has taken.
    - `travelled`: for each edge whose transport counts them, the bytes of the values that the rank has sent, once for
      each consumer, and the bytes that it has sent for them, including those that it passed on for others.
    """

    t: int
    d: int
    step: int
    steps: int
    spent: dict[str, int] = {}
    least: int = 1000
    sent: dict[int, tuple[int, int, int]] = {}
    queued: dict[int, int] = {}
    travelled: dict[int, tuple[int, int]] = {}


Line = Head | Life | Stretch | Account


class FlowOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator call of the flow. It runs on steps with ``step % every == at``."""

    id: int
    role: str
    label: str
    every: int = 1
    at: int = 0
    calls: tuple[str, ...] = ()


class FlowEdge(msgspec.Struct, frozen=True, omit_defaults=True):
    """The way of a value from call `src` to parameter `param` of call `dst`.

    `partition` says how producers and consumers divide it. `credits` is None for the engine's default.
    """

    id: int
    src: int
    dst: int
    param: str
    partition: str
    lag: str = "0"
    credits: int | None = None


class FlowFile(msgspec.Struct, frozen=True):
    """The traced flow of a job, with the numbers of ranks at its start and the plugin of each role."""

    name: str
    ops: tuple[FlowOp, ...]
    edges: tuple[FlowEdge, ...]
    sizes: dict[str, int]
    workloads: dict[str, str]
    callers: tuple[tuple[str, str], ...] = ()
    """Pairs of roles, of which the first calls services of the second. An edge below -1 is a pair and a rank."""
    turns: tuple[tuple[str, ...], ...] = ()
    """The roles whose ranks take turns on a slot, for each kind of slot."""
    ranges: dict[str, tuple[int, int]] = {}
    """The minimum and the maximum number of ranks of elastic roles."""
    version: int = 1


encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line | None:
    """Return a line of a record; None if it is damaged, or of a kind that this version does not know."""
    try:
        found: Line = _decoder.decode(line)
    except UNDECODABLE:
        return None
    return found


def decode_lines(lines: bytes) -> list[Line]:
    """Return the lines of a record, without those for which `decode` returns None."""
    try:
        found: list[Line] = _decoder.decode_lines(lines)  # three times as fast as one by one
    except UNDECODABLE:
        return [line for raw in lines.split(b"\n") if (line := decode(raw)) is not None]
    return found


def rank_folder(run_dir: Path, role: str, rank: int) -> Path:
    """Return the folder with the parts of a rank's record."""
    return run_dir / RECORD_DIR / f"{role}-{rank}"
