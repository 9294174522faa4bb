"""One look at a job: what `rolemesh top` shows, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh_console.sentences import sentence
from rolemesh_facts import RunFacts
from rolemesh_facts.critical import Critical
from rolemesh_facts.labels import edge_label, phase_label, use_label
from rolemesh_facts.pieces import Piece
from rolemesh_facts.time_use import Use
from rolemesh_jobs.picture import job_status
from rolemesh_recorder.lines import Account, FlowFile, Head, Line, Stretch

__all__ = ["EdgeLine", "Frame", "FrameSource", "RankLine", "Station"]

EVENTS = 12
"""Number of latest events in a frame."""
STATIONS = 8
"""Number of stations of the critical path in a frame."""
MOST = 200
"""Characters of an event that are shown."""


class RankLine(msgspec.Struct, frozen=True):
    """A rank. Shares are from 0 to 1: `computing`, `waiting` (for values), `blocked`, and `rest`. `most` is its
    largest share apart from computing, in words."""

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


class Frame(msgspec.Struct, frozen=True):
    """Everything that is shown. `window_s`: the seconds that shares are about."""

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
        since, until = facts.window(window_s)
        known = {f"{each.get('role')}/{each.get('rank')}": each for each in status["ranks"]}
        restarts: dict[str, int] = {}
        for story in facts.stories():
            for name in story.restarted:
                restarts[name] = restarts.get(name, 0) + 1
        ranks = [
            _rank(flow, ref, facts.lines(ref), use, known.pop(str(ref), {}), restarts.get(str(ref), 0))
            for ref, use in facts.uses(since, until).items()
        ]
        ranks += [_unrecorded(name, each, restarts.get(name, 0)) for name, each in known.items()]
        step = status["committed_steps"]
        return Frame(
            str(status["name"]),
            str(summary.state if status["state"] == "unreadable" and summary.ended else status["state"]),
            step if isinstance(step, int) else summary.step + 1,
            summary.steps,
            status["wall_s"],
            summary.goodput,
            "; ".join(map(str, filter(None, [*status["warnings"], status["message"]])))[:MOST],
            (until - since) / 1e6,
            tuple(ranks),
            _edges(facts, flow, since, until),
            _path(facts.critical(since, until)),
            _news(events),
        )


def _rank(
    flow: FlowFile | None, ref: RankRef, lines: Sequence[Line], use: Use, known: Mapping[str, Any], restarts: int
) -> RankLine:
    head = next((line for line in reversed(lines) if isinstance(line, Head)), None)
    account = next((line for line in reversed(lines) if isinstance(line, Account)), None)
    last = next((line for line in reversed(lines) if isinstance(line, Stretch)), None)
    phase = f"{known['phase']} {known.get('doing', '')}".strip() if known.get("phase") else ""
    if not known and last is not None:
        piece = Piece(last.t, last.t + last.d, last.phase, last.op, last.edge)
        phase = f"last: {phase_label(flow, ref.role, piece.phase, piece.op, piece.edge)}"
    waiting = sum(use.share(name) for name in use.spent if name.startswith("edge "))
    other = next(((name, part) for name, part in use.shares.items() if name != "computing"), None)
    most = f"{use_label(flow, ref.role, other[0])} {other[1]:.0%}" if other else ""
    computing = use.share("computing") + use.share("serving")
    step = int(known.get("step", -1)) if known else account.step if account else -1
    return RankLine(
        str(ref),
        str(known.get("node") or (head.node if head else "")),
        int(known.get("pid") or (head.pid if head else 0)),
        str(known.get("state", "")),
        step,
        phase,
        computing,
        waiting,
        max(0.0, 1 - computing - waiting) if use.wall else 0.0,
        most,
        restarts,
    )


def _unrecorded(name: str, known: Mapping[str, Any], restarts: int) -> RankLine:
    phase = f"{known.get('phase', '')} {known.get('doing', '')}".strip()
    state, step = str(known.get("state", "")), int(known.get("step", -1))
    node, pid = str(known.get("node", "")), int(known.get("pid") or 0)
    return RankLine(name, node, pid, state, step, phase, 0.0, 0.0, 0.0, "no record", restarts)


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
            at = datetime.fromtimestamp(event.time).strftime("%H:%M:%S") if 0 <= event.time < 1e11 else "?"
            found.append(f"{at}  {''.join(c if c.isprintable() else '?' for c in said[:MOST])}")
    return tuple(reversed(found))


def _said(event: Event) -> str:
    try:
        return (sentence(event) or "").partition("\n")[0]
    except Exception:  # a damaged event, or one of another version
        return event.kind
