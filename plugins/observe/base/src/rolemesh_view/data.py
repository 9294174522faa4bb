"""The data that scripts of pages ask for, as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts import RunFacts
from rolemesh_facts.lanes import columns, joined, lane
from rolemesh_facts.node_load import Load, engine_load, engine_names, fewer, loads
from rolemesh_facts.pieces import Piece
from rolemesh_facts.series import centred, exponential, thinned
from rolemesh_recorder.lines import Line
from rolemesh_recorder.reading import read_accounts, record_bytes
from rolemesh_view.axis import apart, marks_of, places_of
from rolemesh_view.placement import nodes_of
from rolemesh_view.text import shown
from rolemesh_view.viewed import Runs, Viewed

__all__ = ["DATA"]

Query = Mapping[str, str]
MOST_LANES, MOST_COLUMNS, MOST_POINTS, MOST_RUNS, MOST_MARKS = 60, 3000, 1500, 8, 200
MOST_NODES = 4
"""Maximum number of nodes whose load lies below the lanes."""
COLUMNS_PER_ARROW = 8
"""Columns of the screen per arrow; with more arrows none is drawn, because nobody could follow them."""
MOST_BYTES, MOST_SHOWN = 3_000_000, 1_500_000
"""Bytes of records that are read, and that lie in the window, above which lanes are made of accounts instead of calls.

So an answer stays fast. With more in the window, calls are too short to be seen.
"""

ROUGH_COLUMNS = 300
"""Columns of a lane that is made of accounts."""


class _Once(RunFacts):
    """The facts of one answer: each record is read once, for lanes and for arrows."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines: dict[tuple[RankRef, int], list[Line]] = {}

    def lines(self, ref: RankRef, after: int = 0) -> list[Line]:
        if (ref, after) not in self._lines:
            self._lines[ref, after] = super().lines(ref, after)
        return self._lines[ref, after]


def lanes(run: Viewed, runs: Runs, query: Query) -> bytes:
    """Return pieces, arrows, marks and loads of some ranks between two times, in µs after the begin of the record."""
    begin, end, refs = run.whole()
    since, until = begin + _int(query, "since", 0), begin + _int(query, "until", end - begin)
    first, count = _int(query, "first", 0), min(_int(query, "count", 40), MOST_LANES)
    wide = min(_int(query, "columns", 800), MOST_COLUMNS)
    facts = _Once(run.path)
    flow = facts.flow()
    chosen = refs[first : first + count]
    number = {ref: at for at, ref in enumerate(chosen)}
    nbytes = sum(record_bytes(run.path, ref.role, ref.rank, since) for ref in chosen)
    rough = nbytes > MOST_BYTES or nbytes * min(1.0, (until - since) / max(1, end - since)) > MOST_SHOWN
    if rough:
        accounts = {
            ref: joined(read_accounts(run.path, ref.role, ref.rank, since), since, until, ROUGH_COLUMNS)
            for ref in chosen
        }
        whole = {ref: lane(each, flow, ref.role, since, until) for ref, each in accounts.items()}
        found = {ref: columns(each, since, until, wide) for ref, each in whole.items()}
    else:
        found = facts.lanes(since, until, wide, chosen)
    with run.lock:
        doing, marks = run.phases(), run.facts.marks(end)
        on, engines = nodes_of(run.facts.events(), chosen)[:MOST_NODES], [*_engine_loads(run, since, until, wide)]
    for ref, (phase, began) in doing.items():
        if ref in found:  # its process has no record yet
            last = max((piece.end for piece in found[ref]), default=0)
            if (start := max(last, int(began * 1e6))) < min(end, until):
                found[ref].append(Piece(start, min(end, until), phase))
    loaded = [*_node_loads(run, on, since, until, wide), *engines]
    most = max(20, wide // COLUMNS_PER_ARROW)
    arrows = facts.arrows(since, until, most + 1, chosen) if until > since and not rough else []
    answer: dict[str, Any] = {
        "begin": begin, "length": end - begin, "total": len(refs), "first": first,
        "lanes": [
            [str(ref), [[p.t - begin, p.end - p.t, p.phase, p.op, p.edge, p.step, p.generation]
                        for p in found.get(ref, ())]]
            for ref in chosen
        ],
        "many": rough or len(arrows) > most,
        "arrows": [] if len(arrows) > most else [
            [number[a.source], a.left - begin, number[a.target], a.arrived - begin, a.edge, a.step]
            for a in arrows if a.source in number and a.target in number
        ],
        "marks": [
            [mark.t - begin, mark.end - mark.t, mark.kind, shown(mark.text, 300)]
            for mark in marks if mark.end >= since and mark.t <= until
        ][-MOST_MARKS:],
        "loads": [
            [name, load.what, load.said, load.unit, load.full, [[t - begin, d, part] for t, d, part in load.parts]]
            for name, load in loaded
        ],
        "ops": {op.id: op.label for op in flow.ops} if flow else {},
        "edges": {edge.id: edge.param for edge in flow.edges} if flow else {},
    }  # fmt: skip
    return msgspec.json.encode(answer)


def _node_loads(run: Viewed, nodes: Sequence[str], since: int, until: int, most: int) -> Iterator[tuple[str, Load]]:
    """Yield the loads of nodes between two times, each with the node's name."""
    for node in nodes:
        lines = [line for line in run.usage.lines(node) if line.t + line.d > since and line.t < until]
        yield from ((node, load) for load in loads(fewer(lines, most)))


def _engine_loads(run: Viewed, since: int, until: int, most: int) -> Iterator[tuple[str, Load]]:
    """Yield what inference engines report, with a name for all of them."""
    if names := engine_names(run.facts.metric_names()):
        times = {line.step: int(line.time * 1e6) for line in run.facts.metrics()}
        began = next((event.time for event in run.facts.events() if event.kind == "job_running"), 0.0)
        since = max(since, int(began * 1e6))  # the first line is about the time since the first step began
        for name in names:
            yield "engines", engine_load(name, run.facts.points(name), times, since, until, most)


def metrics(run: Viewed, runs: Runs, query: Query) -> bytes:
    """Return one metric of this run and others: names of runs, places on the axis, and two lists of values per run.

    `raw` has the values themselves, and `smooth` the smoothed ones; it is empty without smoothing. A place where a run
    has no value is null, and a value that is not finite is a text. `odd` has the number of these of each run, and `low`
    that of the values that have no place on a logarithmic axis. `marks` has the failures and resizes of this run, as
    (place on the axis, text), and `end` the place of the last line of metrics of all runs: that of this metric may be
    an earlier one.
    """
    name, smoothing = query.get("name", ""), query.get("smoothing", "")
    strength, along = _int(query, "strength", 0), query.get("axis", "")
    chosen = [run]
    for other in query.get("with", "").split(","):
        found = runs.find(other) if other else None
        if found is not None and found not in chosen:
            chosen.append(found)
    raw, smooth, odd, low, ends = [], [], list[int](), list[int](), list[float]()
    for each in chosen[:MOST_RUNS]:
        ends += places_of(each.facts, [line.step for line in each.facts.metrics()[-1:]], along)
        steps, values = each.facts.points(name)
        places = apart(places_of(each.facts, steps, along))
        odd.append(sum(not math.isfinite(value) for value in values))
        low.append(sum(-math.inf < value <= 0 for value in values))
        raw.append(dict(zip(*thinned((places, values), MOST_POINTS), strict=True)))
        smoothed = _smooth(values, smoothing, strength)
        smooth.append(dict(zip(*thinned((places, smoothed), MOST_POINTS), strict=True)) if smoothed else {})
    axis = sorted({place for points in (*raw, *smooth) for place in points})
    return msgspec.json.encode(
        {
            "runs": [each.name for each in chosen[:MOST_RUNS]],
            "steps": axis,
            "raw": [[_plain(points.get(place)) for place in axis] for points in raw],
            "smooth": [[_plain(points.get(place)) for place in axis] for points in smooth] if any(smooth) else [],
            "odd": odd,
            "low": low,
            "end": max(ends, default=0),
            "marks": marks_of(run.facts, along),
        }
    )


def _smooth(values: list[float], how: str, strength: int) -> list[float]:
    """Return smoothed values; nothing if there is nothing to smooth."""
    if strength < 2 or len(values) < 3:
        return []
    if how == "centred":
        return centred(values, min(strength, 10_000))
    return exponential(values, 1 - 1 / strength) if how == "exponential" else []


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _int(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 16:
        raise ValueError(f"{name}: a whole number is wanted")
    return int(text)


DATA: Final[Mapping[str, Callable[[Viewed, Runs, Any], bytes]]] = {"lanes": lanes, "metrics": metrics}
