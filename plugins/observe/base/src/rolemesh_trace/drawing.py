"""From lanes and events to the content of the file, piece by piece. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec

from rolemesh.api.observer import Event
from rolemesh_console.sentences import sentence
from rolemesh_facts.lanes import lane as filled
from rolemesh_facts.pieces import Piece
from rolemesh_facts.recoveries import Story, stories
from rolemesh_recorder.lines import FlowFile
from rolemesh_recorder.usage import Usage
from rolemesh_trace import packets
from rolemesh_trace.arrows import Run, arrows
from rolemesh_trace.lanes import LATEST, Lane
from rolemesh_trace.names import Names
from rolemesh_trace.packets import Instant, Slice
from rolemesh_trace.shares import interval, rates

__all__ = ["Counts", "drawing"]

JOB_PID = 1
LONGEST_NAME = 120
NEAR = 10_000
"""Maximum number of spans in the account in which a process has ended its last span."""
Ends = dict[int, tuple[int, ...]]
Counts = Sequence[tuple[int, float]]
"""Times in µs since 1970, growing, and values."""


def drawing(
    name: str,
    flow: FlowFile,
    lanes: Sequence[Lane],
    events: Sequence[Event],
    nodes: Mapping[str, Sequence[Usage]] | None = None,
    metrics: Mapping[str, Counts] | None = None,
) -> Iterator[bytes]:
    """Yield the file's content: the job's tracks with its `metrics`, those of one rank after the other, and the load of
    `nodes`."""
    nodes = nodes or {}
    times = [lane.begin() for lane in lanes] + [int(event.time * 1e6) for event in events]
    times += [line.t for lines in nodes.values() for line in lines]
    start = min(times, default=0)
    end = max((each.t + each.d for lane in lanes for each in lane.accounts[-1:]), default=start)
    width = interval(start, end)
    numbers, names = count(1), Names(flow)
    yield packets.clock(start)
    yield from _job(name, start, max([end, *times]), events, numbers)
    yield from _edges(flow, names, lanes, (start, width), numbers)
    for metric, points in (metrics or {}).items():
        yield from _counter(next(numbers), JOB_PID, (f"metric {metric}"[:LONGEST_NAME], ""), start, points)
    out, into = _ends(flow, lanes)
    pids: dict[tuple[str, str], int] = {}
    for at, lane in enumerate(lanes):
        key = (lane.node, lane.ref.role)
        if key not in pids:
            pids[key] = JOB_PID + 1 + len(pids)
            yield packets.process(next(numbers), pids[key], f"{lane.ref.role} on {lane.node[:12] or 'unknown node'}")
        thread = next(numbers)
        yield packets.thread(thread, pids[key], 1_000_000 + at, str(lane.ref))
        yield packets.slices(thread, start, _slices(lane, flow, names, out[at], into[at]))
        speed = next(numbers)
        yield packets.counter(speed, thread, f"{lane.ref}: steps", "steps/s")
        steps = rates(((each.t, each.d, 1e6 * each.steps) for each in lane.accounts), width)
        yield packets.counts(speed, start, steps)
    for at, (node, lines) in enumerate(nodes.items()):
        yield from _node(node, JOB_PID + 1 + len(pids) + at, lines, start, numbers)


def _node(name: str, pid: int, lines: Sequence[Usage], start: int, numbers: Iterator[int]) -> Iterator[bytes]:
    """Yield a process with the counters of a node."""
    process = next(numbers)
    yield packets.process(process, pid, f"node {name[:12]}")
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in sorted(lines, key=lambda line: line.t):
        told: dict[tuple[str, str], float | None] = {
            ("cores", "cores"): line.cores,
            ("memory", "GB"): line.memory / 1e9,
            ("received", "MB/s"): line.received / max(1, line.d),
            ("sent", "MB/s"): line.sent / max(1, line.d),
        }
        for gpu in line.gpus:
            told[f"GPU {gpu.index}", "%"] = None if gpu.busy is None else 100 * gpu.busy
            told[f"GPU {gpu.index}: memory", "GB"] = None if gpu.memory is None else gpu.memory / 1e9
            told[f"GPU {gpu.index}: temperature", "°C"] = gpu.celsius
        for key, value in told.items():
            if value is not None:
                found.setdefault(key, []).append((line.t, value))
    for named, points in found.items():
        yield from _counter(next(numbers), process, named, start, points)


def _counter(uuid: int, parent: int, named: tuple[str, str], start: int, points: Counts) -> Iterator[bytes]:
    yield packets.counter(uuid, parent, *named)
    yield packets.counts(uuid, start, points)


def _slices(lane: Lane, flow: FlowFile, names: Names, out: Ends, into: Ends) -> Iterator[Slice]:
    for life in lane.lives:
        yield Slice(life.t, life.t + life.d, life.what)
    named = names.span
    for at, span in enumerate(lane.spans):
        name = named(span.phase, span.op, span.edge)
        yield Slice(span.t, span.t + span.d, name, span.step, out.get(at, ()), into.get(at, ()))
    for piece in _unended(lane, flow):
        yield Slice(piece.t, piece.end, named(piece.phase, piece.op, piece.edge))


def _unended(lane: Lane, flow: FlowFile) -> Iterator[Piece]:
    """Yield what each process did after its last span: the accounts count spans that have not ended, too."""
    begin = 0
    for bound in [*sorted({head.t for head in lane.heads[1:]}), LATEST]:
        accounts = [each for each in lane.accounts[begin:] if each.t < bound]
        begin += len(accounts)
        last = bisect_left(lane.spans, bound, key=lambda span: span.t + span.d)
        ended = lane.spans[last - 1].t + lane.spans[last - 1].d if last else 0
        rest = [each for each in accounts if each.t + each.d > ended]
        spans = [span for span in lane.spans[max(0, last - NEAR) : last] if rest and span.t + span.d > rest[0].t]
        pieces = filled([*spans, *rest], flow, lane.ref.role, ended, bound) if rest else []
        yield from (each for each in pieces if each.t >= ended and each.phase != "engine")


def _ends(flow: FlowFile, lanes: Sequence[Lane]) -> tuple[list[Ends], list[Ends]]:
    """Return the numbers of the arrows that leave each span, and those that end there, by lane and place."""
    linked = {op for edge in flow.edges for op in (edge.src, edge.dst)}
    runs: dict[tuple[int, int], list[Run]] = {}
    for number, lane in enumerate(lanes):
        for at, span in enumerate(lane.spans):
            if span.phase == "computing" and span.op in linked:
                run = Run(span.t + span.d, span.t, lane.ref.rank, number, at)
                runs.setdefault((span.op, span.step), []).append(run)
    out: list[Ends] = [{} for _ in lanes]
    into: list[Ends] = [{} for _ in lanes]
    for number, (producer, consumer) in enumerate(arrows(flow, runs), 1):
        for ends, run in ((out, producer), (into, consumer)):
            ends[run.lane][run.at] = (*ends[run.lane].get(run.at, ()), number)
    return out, into


def _edges(
    flow: FlowFile, names: Names, lanes: Sequence[Lane], times: tuple[int, int], numbers: Iterator[int]
) -> Iterator[bytes]:
    """Yield two counters for each edge: the shares of their time that consumers and producers wait."""
    roles = {op.id: op.role for op in flow.ops}
    start, width = times
    for edge in flow.edges:
        bucket = f"edge {edge.id}"
        for op, who in ((edge.dst, "consumers wait"), (edge.src, "producers wait")):
            accounts = [each for lane in lanes if lane.ref.role == roles.get(op) for each in lane.accounts]
            amounts = [(each.t, each.d, 100.0 * each.spent.get(bucket, 0)) for each in accounts]
            if any(amount for _, _, amount in amounts):
                uuid = next(numbers)
                yield packets.counter(uuid, JOB_PID, f"{names.edge(edge.id)}: {who}", "%")
                yield packets.counts(uuid, start, rates(amounts, width))


def _job(name: str, start: int, end: int, events: Sequence[Event], numbers: Iterator[int]) -> Iterator[bytes]:
    job = next(numbers)  # the number is JOB_PID, because it is the first one
    yield packets.process(job, JOB_PID, f"job {name}")
    uuid = next(numbers)
    yield packets.track(uuid, job, "events")
    yield packets.instants(uuid, start, _instants(events))
    lines: list[tuple[int, list[Slice]]] = []
    for each in stories(events):
        shown = _recovery(each, end)
        for at, (until, found) in enumerate(lines):
            if until <= shown.began:
                lines[at] = (shown.ended, [*found, shown])
                break
        else:
            lines.append((shown.ended, [shown]))
    for _, found in lines:
        uuid = next(numbers)
        yield packets.track(uuid, job, "recoveries")
        yield packets.slices(uuid, start, found)


def _recovery(each: Story, end: int) -> Slice:
    began = int(each.began * 1e6)
    ended = end if each.ready_s is None else began + int(each.ready_s * 1e6)
    restarted = f": {', '.join(each.restarted)}" if each.restarted else ""
    what = f"recovery {each.number} by {each.level}{restarted}" if each.number else "failures without a recovery"
    return Slice(began, max(began, ended), what[:LONGEST_NAME])


def _instants(events: Iterable[Event]) -> Iterator[Instant]:
    for event in events:
        try:
            told = sentence(event)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
            told = event.kind  # damaged data
        if told is not None:
            details = {"kind": event.kind, "number": str(event.seq), "text": told[:10_000]}
            yield Instant(int(event.time * 1e6), told.partition("\n")[0][:LONGEST_NAME], details)
