"""One look at a job: what `rolemesh top` shows, as plain data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.observer import Event, RankStatus
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import EXIT_CODES
from rolemesh_console.sentences import sentence
from rolemesh_console.text import activity
from rolemesh_facts import RunFacts
from rolemesh_facts.critical import Critical
from rolemesh_facts.labels import edge_label, phase_label, use_label
from rolemesh_facts.overview import leading, pace_of, trend, under_way
from rolemesh_facts.pieces import Piece
from rolemesh_facts.ranks import ends_of, processes_of
from rolemesh_facts.run import Summary
from rolemesh_facts.time_use import Use, use_of
from rolemesh_jobs.picture import job_status
from rolemesh_recorder.lines import Account, FlowFile, Head, Line, Stretch
from rolemesh_recorder.reading import latest_head, latest_lines
from rolemesh_runtime.waiting import waiting_jobs

__all__ = ["EdgeLine", "Frame", "FrameSource", "MetricLine", "RankLine", "Station"]

EVENTS = 12
"""Number of latest events in a frame."""
STATIONS = 8
"""Number of stations of the critical path in a frame."""
METRICS, CURVE = 4, 24
"""Numbers of metrics in a frame, and of means in the curve of each."""
MOST = 200
"""Characters of an event that are shown."""
OVER = "all steps done"
"""The name of the time in which a rank has no step left to do."""
BEFORE = {"starting": "starts", "up": "runs setup", "ready": "waits for the other ranks"}
"""Words for a rank that does not run yet, by its state."""
GONE = ("dead", "unreadable", "new")
"""States of a job of which no process is known to live."""
WORK = ("computing", "serving")
CALLS = ("calling", "following")
"""Waits of the two ends of a call."""
END_US = 600_000_000
"""µs that ranks usually wait for the end of their job at most."""
NO_RECORD = "no record"
_NEVER = 1 << 62


class RankLine(msgspec.Struct, frozen=True):
    """A rank. Shares are from 0 to 1: `computing`, `waiting` (for values, consumers, answers and callers), and `rest`.

    `computing` includes the calls that it answers. `state`: of an ended job, how the rank ended (see `ends_of`).
    `most` is its largest other share, in words.
    """

    rank: str
    node: str
    pid: int
    state: str
    step: int
    phase: str
    computing: float
    waiting: float
    rest: float
    most: str
    restarts: int


class EdgeLine(msgspec.Struct, frozen=True):
    """An edge, and the shares of the time in which consumers wait for values and producers for consumers."""

    edge: str
    lag: str
    waiting: float
    blocked: float


class Station(msgspec.Struct, frozen=True):
    """A station of the critical path, with its share of it."""

    name: str
    share: float


class MetricLine(msgspec.Struct, frozen=True):
    """A metric: its latest value, what it does ("rises", "falls", "stays", ""), and means over equal parts of it."""

    name: str
    value: float
    trend: str
    curve: tuple[float, ...]


class Frame(msgspec.Struct, frozen=True):
    """Everything that is shown. `window_s`: the seconds that shares are about.

    `step_s` and `left_s`: the seconds per step, and until the last step; None if they are not known. `under_way`: how
    far the operators of the present step are, in words. `waiting`: the jobs that wait for room in the same runs folder,
    and why.
    """

    name: str
    state: str
    step: int
    steps: int | None
    wall_s: float | None
    goodput: float | None
    message: str
    window_s: float
    ranks: tuple[RankLine, ...] = ()
    edges: tuple[EdgeLine, ...] = ()
    path: tuple[Station, ...] = ()
    events: tuple[str, ...] = ()
    metrics: tuple[MetricLine, ...] = ()
    step_s: float | None = None
    left_s: float | None = None
    under_way: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class FrameSource:
    """Makes frames of the run in a folder."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._facts = RunFacts(run_dir)

    def frame(self, window_s: float) -> Frame:
        """Return how the job is now, with the shares of the last `window_s` seconds of its record."""
        facts = self._facts
        status = job_status(self.run_dir)
        flow, summary, events = facts.flow(), facts.summary(), facts.events()
        ended = status["state"] in EXIT_CODES
        since, until = facts.window(window_s)
        lines = {ref: _latest(facts, ref, since, ended) for ref in facts.ranks()}
        begin, end = facts.window(None)
        if ended and until == end:  # without a whole step, the last part is the wait for the end of the job
            until = min(until, max(map(_worked_until, lines.values()), default=until) or until)
            since = min(since, max(begin, until - int(window_s * 1e6)))
        last = _last_step(status, summary, ended)
        known = {f"{each.get('role')}/{each.get('rank')}": each for each in status["ranks"]}
        restarts: dict[str, int] = {}
        for story in facts.stories():
            for name in story.restarted:
                restarts[name] = restarts.get(name, 0) + 1
        ends = ends_of(events) if ended else {}
        heads = {ref: latest_head(facts.path, ref.role, ref.rank) for ref in lines}
        if not all(heads.values()):
            starts = {RankRef(each.role, each.rank): each for each in processes_of(events)}
            heads = {ref: head or starts.get(ref) for ref, head in heads.items()}
        ranks = [
            _rank(
                flow,
                ref,
                heads[ref],
                own,
                use_of(_after(own, last), since, until),
                known.pop(str(ref), {}),
                ends.get(ref, ""),
                restarts.get(str(ref), 0),
                last,
            )
            for ref, own in lines.items()
        ]
        ranks += [_unrecorded(name, each, restarts.get(name, 0)) for name, each in known.items()]
        step = status["committed_steps"]
        live = not ended and status["state"] not in GONE
        pace = pace_of(facts.paced(), summary, time.time() if live else None)
        return Frame(
            str(status["name"]),
            str(summary.state if status["state"] == "unreadable" and summary.ended else status["state"]),
            step if isinstance(step, int) else summary.step + 1,
            summary.steps,
            status["wall_s"],
            summary.goodput,
            "; ".join(map(str, filter(None, [*status["warnings"], status["message"] or summary.message])))[:MOST],
            (until - since) / 1e6,
            tuple(ranks),
            _edges(facts, flow, since, until),
            _path(facts.critical(since, until)),
            _news(events),
            tuple(_metric(facts, name) for name in leading(facts.metric_names(), METRICS)),
            pace.step,
            pace.left,
            tuple(under_way(_status_of(each) for each in status["ranks"])),
            tuple(f"{each.job} {each}"[:MOST] for each in waiting_jobs(facts.path.resolve().parent)),
        )


def _status_of(known: Mapping[str, Any]) -> RankStatus:
    ours = {name: known[name] for name in RankStatus.__struct_fields__ if name in known}
    return RankStatus(**{"node": "", "pid": 0, "state": "", "step": -1, **ours})


def _metric(facts: RunFacts, name: str) -> MetricLine:
    points = facts.points(name)
    values = [value for value in points[1] if math.isfinite(value)]
    parts = min(CURVE, len(values))
    ends = [len(values) * at // parts for at in range(parts + 1)] if parts else []
    curve = tuple(math.fsum(values[begin:end]) / (end - begin) for begin, end in pairwise(ends))
    found = trend(points, facts.lengths())
    return MetricLine(name, points[1][-1], found.word if found else "", curve)


def _last_step(status: Mapping[str, Any], summary: Summary, ended: bool) -> int:
    """Return the number of the job's last step; a very large one if it is not known."""
    done, steps = status["committed_steps"], summary.steps
    if ended and status["state"] == "done" and isinstance(done, int):
        return done - 1
    return steps - 1 if steps else _NEVER


def _latest(facts: RunFacts, ref: RankRef, since: int, ended: bool) -> list[Line]:
    """Return the latest lines of a rank's record, from `since` on; of an ended job also those before its long end."""
    found = latest_lines(facts.path, ref.role, ref.rank, since - END_US * ended)
    return found if _worked_until(found) or not ended else facts.lines(ref)


def _worked_until(lines: Sequence[Line]) -> int:
    """Return when a rank's last operator ended, in µs since 1970; 0 if it had none."""
    works = (line.t + line.d for line in reversed(lines) if isinstance(line, Stretch) and line.phase in WORK)
    steps = (line.t + line.d for line in reversed(lines) if isinstance(line, Account) and line.steps)
    return next(works, None) or next(steps, 0)


def _after(lines: Sequence[Line], last: int) -> Iterator[Line]:
    """Yield a rank's lines. The time in which it waited for grants after the step `last` has the name `OVER`."""
    waits = (line.t for line in lines if isinstance(line, Stretch) and line.phase == "idle" and line.step >= last)
    steps = (line.t + line.d for line in lines if isinstance(line, Account) and line.steps and line.step >= last)
    since = min((*waits, *steps), default=_NEVER)
    for line in lines:
        idle = line.spent.get("idle", 0) if isinstance(line, Account) and line.step >= last else 0
        if idle and isinstance(line, Account) and line.t + line.d > since:
            over = min(idle, line.t + line.d - max(since, line.t))
            line = msgspec.structs.replace(line, spent=line.spent | {"idle": idle - over, OVER: over})
        yield line


def _rank(
    flow: FlowFile | None,
    ref: RankRef,
    head: Head | None,
    lines: Sequence[Line],
    use: Use,
    known: Mapping[str, Any],
    end: str,
    restarts: int,
    last_step: int,
) -> RankLine:
    account = next((line for line in reversed(lines) if isinstance(line, Account)), None)
    last = next((line for line in reversed(lines) if isinstance(line, Stretch)), None)
    phase = _present(known)
    if not known and account is not None and account.step >= last_step:
        phase = OVER
    elif not known and last is not None:
        piece = Piece(last.t, last.t + last.d, last.phase, last.op, last.edge)
        phase = f"last: {phase_label(flow, ref.role, piece.phase, piece.op, piece.edge)}"
    waiting = sum(use.share(name) for name in use.spent if name.startswith("edge ") or name in CALLS)
    other = next(((name, part) for name, part in use.shares.items() if name not in WORK), None)
    most = f"{other[1]:.0%} {use_label(flow, ref.role, other[0])}" if other else "" if lines else NO_RECORD
    computing = use.share("computing") + use.share("serving")
    step = int(known.get("step", -1)) if known else account.step if account else -1
    return RankLine(
        str(ref),
        str(known.get("node") or (head.node if head else "")),
        int(known.get("pid") or (head.pid if head else 0)),
        str(known.get("state", end)),
        step,
        phase,
        computing,
        waiting,
        max(0.0, 1 - computing - waiting) if use.wall else 0.0,
        most,
        restarts,
    )


def _unrecorded(name: str, known: Mapping[str, Any], restarts: int) -> RankLine:
    state, step = str(known.get("state", "")), int(known.get("step", -1))
    node, pid = str(known.get("node", "")), int(known.get("pid") or 0)
    return RankLine(name, node, pid, state, step, _present(known), 0.0, 0.0, 0.0, NO_RECORD, restarts)


def _present(known: Mapping[str, Any]) -> str:
    """Return what the master knows that a rank does now; "" for nothing."""
    if known.get("phase"):
        return activity(_status_of(known)).plain
    return BEFORE.get(str(known.get("state")), "")


def _edges(facts: RunFacts, flow: FlowFile | None, since: int, until: int) -> tuple[EdgeLine, ...]:
    if flow is None:
        return ()
    by_id = {edge.id: edge for edge in flow.edges}
    return tuple(
        EdgeLine(edge_label(flow, by_id[use.edge]), by_id[use.edge].lag, use.waiting, use.blocked)
        for use in facts.edges(since, until)
    )


def _path(critical: Critical | None) -> tuple[Station, ...]:
    return tuple(Station(each.name, each.share) for each in critical.stations[:STATIONS]) if critical else ()


def _news(events: Sequence[Event]) -> tuple[str, ...]:
    """Return the latest events that have a sentence, the oldest first."""
    found: list[str] = []
    for event in reversed(events):
        if len(found) < EVENTS and (said := _said(event)):
            at = f"{datetime.fromtimestamp(event.time, UTC):%H:%M:%SZ}" if 0 <= event.time < 1e11 else "?"
            found.append(f"{at}  {''.join(c if c.isprintable() else '?' for c in said[:MOST])}")
    return tuple(reversed(found))


def _said(event: Event) -> str:
    try:
        first, _, rest = (sentence(event) or "").partition("\n")
        return f"{first} {rest.partition(chr(10))[0].strip()}" if first.endswith(":") else first
    except Exception:  # a damaged event, or one of another version
        return event.kind
