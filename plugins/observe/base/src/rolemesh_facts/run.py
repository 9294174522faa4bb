"""A run's folder as facts. Each question reads again what has changed since the last one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh.api.rank_ref import RankRef
from rolemesh.runs.jsonl import UNDECODABLE, open_regular, read_metrics
from rolemesh.runs.run import EVENTS_FILE, JOB_FILE, LOGS_DIR, METRICS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_facts.advice import LATEST, Advice, Evidence, advice, old_values
from rolemesh_facts.cost import Cost, costs
from rolemesh_facts.critical import Critical, critical_path
from rolemesh_facts.edge_states import EdgeState, edge_states
from rolemesh_facts.lanes import columns, lane
from rolemesh_facts.marks import Mark, marks
from rolemesh_facts.pieces import Piece, stretches
from rolemesh_facts.ranks import ranks_of
from rolemesh_facts.recoveries import Story, stories
from rolemesh_facts.row_meaning import meaning
from rolemesh_facts.series import Collected, Points, read_values
from rolemesh_facts.sizes import sizes_at
from rolemesh_facts.time_use import EdgeUse, Use, by_role, edge_uses, reached_step, use_of, whole_steps
from rolemesh_recorder.lines import FlowFile, Line, Stretch
from rolemesh_recorder.reading import (
    kept_rows,
    latest_rows,
    read_accounts,
    read_flow,
    read_record,
    record_ends,
    recorded_ranks,
)
from rolemesh_recorder.rows import Row
from rolemesh_recorder.usage import Usage, read_usage
from rolemesh_runtime.run_files import content_in, names_in

T = TypeVar("T")

__all__ = ["Arrow", "RunFacts", "Summary"]

MOST_PIECES = 4000
"""Pieces of one lane in an answer; with more, those of each column of a picture become one."""
_NOTHING: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, {})
"""Values of a line of metrics that has none. All such lines share them."""
BEGIN_BYTES = 400
"""Bytes at the beginning of the events that tell one run from another in the same folder."""
LAST_BYTES = 65_536
"""Bytes at the end of a file of metrics that usually have its last line."""
LATE_S = 1e11
"""Time in seconds since 1970 at or beyond which a line of metrics is damage."""
RECENT = 32
"""Lines of metrics from which the speed is taken."""
LATEST_S = 60.0
"""Minimum number of seconds that questions about the latest part of a run look at: whole steps, if there are any."""


class Summary(NamedTuple):
    """The run in one line. Times are in seconds since 1970; `ended` is 0 while it runs or if it died."""

    name: str
    state: str
    step: int
    steps: int | None
    began: float
    ended: float
    message: str
    roles: dict[str, int]
    goodput: float | None


class Arrow(NamedTuple):
    """A value's way: from the end of the call that made it to the begin of the call that took it, in µs since 1970."""

    edge: int
    step: int
    source: RankRef
    left: int
    target: RankRef
    arrived: int


class RunFacts:
    """The facts of the run in `path`. Missing, damaged and foreign files are empty facts, not errors.

    Arguments `since` and `until` are µs since 1970, and durations in results are µs. Times of events and of lines of
    metrics are seconds since 1970, as in the files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._events: tuple[int, list[Event]] = (0, [])
        self._begin = b""
        self._metrics: list[StepMetrics] = []
        self._series = Collected()
        self._last: tuple[int, StepMetrics | None] = (0, None)
        """The size of ``metrics.jsonl``, and its last line then."""
        self._metrics_end = 0
        """Byte behind the last line of ``metrics.jsonl`` that is certainly in `_metrics`."""

    # ------------------------------------------------------------------------------------------------ files

    def info(self) -> RunInfo | None:
        """Return ``run.json``."""
        return _json(self.path / RUN_FILE, RunInfo)

    def result(self) -> dict[str, Any]:
        """Return ``result.json``; empty if the job has not ended."""
        return _json(self.path / RESULT_FILE, dict[str, Any]) or {}

    def plan(self) -> dict[str, Any]:
        """Return ``plan.json``."""
        return _json(self.path / "plan.json", dict[str, Any]) or {}

    def job_file(self) -> str:
        """Return the text of ``job.yaml``."""
        try:
            return content_in(self.path, JOB_FILE).decode(errors="replace")
        except OSError:
            return ""

    def flow(self) -> FlowFile | None:
        """Return the traced flow; None if its numbers do not fit together."""
        flow = read_flow(self.path)
        return flow if flow is not None and _fits(flow) else None

    def events(self) -> list[Event]:
        """Return all events."""
        offset, known = self._events
        try:
            with open_regular(self.path / EVENTS_FILE) as file:
                begin = file.read(BEGIN_BYTES)
                if not begin.startswith(self._begin):  # a new run of the job has taken the folder
                    offset, known, self._metrics, self._series = 0, [], [], Collected()
                self._begin = begin
                file.seek(offset)
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    offset += len(raw)
                    try:
                        known.append(msgspec.json.decode(raw, type=Event))
                    except UNDECODABLE:
                        continue
        except OSError:
            pass
        self._events = offset, known
        return known

    def metrics(self) -> list[StepMetrics]:
        """Return all lines of metrics, with their steps and times only: there may be millions."""
        self.events()  # forgets the metrics of a former run
        path, start = self.path / METRICS_FILE, self._metrics_end if self._metrics else 0
        after = self._metrics[-1].step if self._metrics else -1
        with suppress(OSError):
            self._metrics_end = _last_line_end(path, start)
            for line in read_values(path, after, start):
                self._series.add(line)
                self._metrics.append(StepMetrics(line.step, line.steps, line.time, *_NOTHING))
        return self._metrics

    def paced(self) -> list[StepMetrics]:
        """Return the latest lines of metrics, from which the speed follows: those since the last resize, if it has two.

        The first one only marks the begin of the others.
        """
        recent = self.metrics()[-RECENT:]
        resized = next((event.time for event in reversed(self.events()) if event.kind == "resized"), 0.0)
        since = [line for line in recent if line.time > resized]
        return since if len(since) > 1 else recent

    def metrics_bytes(self) -> int:
        """Return the size of ``metrics.jsonl``; 0 if there is none. It grows with each line."""
        with suppress(OSError):
            return (self.path / METRICS_FILE).stat().st_size
        return 0

    def last_metrics(self) -> StepMetrics | None:
        """Return the last line of metrics, without reading the others; None if there is none."""
        path = self.path / METRICS_FILE
        with suppress(OSError):
            size = path.stat().st_size
            if size != self._last[0]:
                start = max(0, size - LAST_BYTES)
                start = _line_begin(path, start) if start else 0
                lines = list(read_metrics(path, start=start)) or list(read_metrics(path))
                self._last = size, lines[-1] if lines else None
            return self._last[1]
        return None

    def logs(self) -> list[Path]:
        """Return the logs of ranks."""
        with suppress(OSError):
            return [
                self.path / LOGS_DIR / each for each in sorted(names_in(self.path, LOGS_DIR)) if each.endswith(".log")
            ]
        return []

    # ---------------------------------------------------------------------------------------------- questions

    def summary(self, result: Mapping[str, Any] | None = None) -> Summary:
        """Return the run in one line. `result` is the content of ``result.json``, if the file may not exist yet."""
        result = self.result() if result is None else result
        info, events, last_line = self.info(), self.events(), self.last_metrics()
        name = info.name if info else self.path.resolve().name
        began = events[0].time if events else 0.0
        last = events[-1] if events else None
        said = last.data.get("status") if last and last.kind == "job_ended" else None  # only the owner reads the result
        state = str(result.get("status") or said or ("began" if events else "new"))
        ended, lasted = last.time if last and (result or said) else 0.0, result.get("wall_s")
        if ended and isinstance(lasted, int | float):
            ended = began + lasted  # the job also took what precedes and follows its events
        committed = result.get("committed_steps")
        origin = events[0].data.get("origin_step") if events else None
        start = origin if isinstance(origin, int) else -1  # a resumed job has done these steps before its first line
        step = committed - 1 if isinstance(committed, int) else last_line.step if last_line else start
        found = result.get("goodput")
        goodput = found.get("share") if isinstance(found, dict) else found
        return Summary(
            name, state, step, info.steps if info else None, began, ended, _message(result),
            dict(info.roles) if info else {}, goodput if isinstance(goodput, float) else None,
        )  # fmt: skip

    def ranks(self) -> list[RankRef]:
        """Return the ranks, by role and number, also those without a record: see `ranks_of`. Empty without records."""
        return ranks_of(self.flow(), self.events(), recorded_ranks(self.path))

    def window(self, seconds: float | None = LATEST_S) -> tuple[int, int]:
        """Return the begin and end of the last steps, of at least `seconds` together, in µs since 1970.

        See `whole_steps`. All of the record for None.
        """
        begin, end = 1 << 62, 0
        for ref in recorded_ranks(self.path):
            first, last = record_ends(self.path, ref.role, ref.rank)
            begin, end = min(begin, first), max(end, last)
        if not end:
            now = time.time_ns() // 1000
            return now, now
        return (begin, end) if seconds is None else self.steps_within(begin, end, seconds)

    def steps_within(self, begin: int, end: int, seconds: float) -> tuple[int, int]:
        """Return the begin and end of the last steps between two times, of at least `seconds` together."""
        ends: list[int] = []
        for line in reversed(self.metrics()):
            if not 0 < line.time < LATE_S:
                break  # damage
            ends.append(int(line.time * 1e6))
            if ends[-1] <= min(end, ends[0]) - seconds * 1e6:
                break
        return whole_steps(ends[::-1], begin, end, int(seconds * 1e6))

    def lines(self, ref: RankRef, after: int = 0) -> list[Line]:
        """Return the lines of a rank's record; without old parts, if `after` is a time in µs since 1970."""
        return list(read_record(self.path, ref.role, ref.rank, after))

    def usage(self, node: str) -> list[Usage]:
        """Return the lines of a node's load; none if it has no record."""
        return list(read_usage(self.path, node))

    def uses(self, since: int, until: int) -> dict[RankRef, Use]:
        """Return where the time of each rank went."""
        return {ref: use_of(self.lines(ref, since), since, until) for ref in self.ranks()}

    def roles(self, since: int, until: int) -> dict[str, Use]:
        """Return where the time of each role went."""
        return by_role(self.uses(since, until))

    def edges(self, since: int, until: int) -> list[EdgeUse]:
        """Return the waits on each edge."""
        flow = self.flow()
        return edge_uses(flow, self.uses(since, until)) if flow else []

    def edge_states(self, since: int, until: int) -> list[EdgeState]:
        """Return what passes over each edge: queues, credits, rates and staleness."""
        flow, last = self.flow(), self.last_metrics()
        return edge_states(flow, self.uses(since, until), last.staleness if last else {}) if flow else []

    def lanes(
        self, since: int, until: int, most: int = MOST_PIECES, ranks: Sequence[RankRef] | None = None
    ) -> dict[RankRef, list[Piece]]:
        """Return the lane of each rank between two times, of at most about `most` pieces: see `lane` and `columns`.

        `ranks`: only these; all for None.
        """
        flow, found = self.flow(), {}
        for ref in self.ranks() if ranks is None else ranks:
            pieces = lane(self.lines(ref, since), flow, ref.role, since, until)
            found[ref] = columns(pieces, since, until, most)
        return found

    def arrows(self, since: int, until: int, most: int = 2000, ranks: Sequence[RankRef] | None = None) -> list[Arrow]:
        """Return the ways of values between calls that have stretches, for edges with a fixed lag.

        `ranks`: only between these; all for None.
        """
        flow = self.flow()
        if flow is None:
            return []
        refs = recorded_ranks(self.path) if ranks is None else ranks
        roles = {ref.role for ref in refs}
        ends = [(edge, {flow.ops[edge.src].role, flow.ops[edge.dst].role}) for edge in flow.edges if edge.lag.isdigit()]
        edges = [edge for edge, both in ends if both <= roles]
        ops = {op for edge in edges for op in (edge.src, edge.dst)}
        calls: dict[int, dict[int, list[tuple[RankRef, int, int]]]] = {op: {} for op in ops}
        for ref in refs if edges else ():
            for line in self.lines(ref, since):
                if not isinstance(line, Stretch) or line.op not in ops or line.phase != "computing":
                    continue
                if since - line.d < line.t < until:
                    calls[line.op].setdefault(line.step, []).append((ref, line.t, line.t + line.d))
        found = []
        for edge in edges:
            sources, lag = calls[edge.src], int(edge.lag)
            for step, takers in calls[edge.dst].items():
                for source, _, left in sources.get(step - lag, ()):
                    found += [Arrow(edge.id, step, source, left, target, t) for target, t, _ in takers if t >= left]
        return sorted(found, key=lambda arrow: arrow.arrived)[-most:]

    def critical(self, since: int, until: int) -> Critical | None:
        """Return the critical path between two times; None without a flow."""
        flow = self.flow()
        if flow is None:
            return None
        sizes = sizes_at(flow, self.events(), until / 1e6)
        living = [ref for ref in recorded_ranks(self.path) if ref.rank < sizes.get(ref.role, 0)]
        lines = {ref: self.lines(ref, since) for ref in living}
        lanes = {ref: stretches(each, since, until) for ref, each in lines.items()}
        reached = {ref: reached_step(each, until) for ref, each in lines.items()}
        return critical_path(flow, lanes, since, until, reached)

    def stories(self) -> list[Story]:
        """Return the recoveries."""
        return stories(self.events())

    def marks(self, end: int = 1 << 62) -> list[Mark]:
        """Return the failures, recoveries and resizes as marks over a time that ends at `end`: see `marks`."""
        return marks(self.stories(), self.events(), end)

    def costs(self, now: float | None = None) -> list[Cost]:
        """Return the cost of each role until the end of the job; of one that lives, until the time `now`."""
        flow, summary, events = self.flow(), self.summary(), self.events()
        last = self.last_metrics()
        until = summary.ended or now or max((events[-1].time if events else 0.0, last.time if last else 0.0))
        uses = {ref: use_of(read_accounts(self.path, ref.role, ref.rank, 0)) for ref in self.ranks()}
        sizes = flow.sizes if flow is not None else summary.roles
        return costs(sizes, self.plan(), events, self.stories(), by_role(uses), until)

    def latest(self, most: int = LATEST) -> dict[str, Points]:
        """Return all metrics, with the last `most` points of each."""
        return {name: self._series.points(name, most) for name in self.metric_names()}

    def lengths(self) -> dict[int, int]:
        """Return the number of steps of each line of metrics, by its last step."""
        return {line.step: line.steps for line in self.metrics()}

    def metric_names(self) -> list[str]:
        """Return the names of all metrics."""
        self.metrics()
        return self._series.names()

    def points(self, name: str) -> Points:
        """Return all points of a metric, as far as this object has read them; it reads them for the first question."""
        if not self._metrics:
            self.metrics()
        return self._series.points(name)

    def rows(self) -> Iterator[tuple[RankRef, Row]]:
        """Yield the kept rows."""
        return kept_rows(self.path)

    def advice(self) -> list[Advice]:
        """Return what the rules found in the latest part of the run."""
        since, until = self.window()
        flow, uses = self.flow(), self.uses(since, until)
        last = self.last_metrics()
        edges = edge_uses(flow, uses) if flow else []
        old = old_values(flow, edge_states(flow, uses, last.staleness if last else {})) if flow else []
        said = [meaning(row.columns) for row in latest_rows(self.path)]
        critical = self.critical(since, until)
        return advice(Evidence(uses, edges, self.stories(), self.latest(), old, said, critical))


def _message(result: Mapping[str, Any]) -> str:
    """Return what the job said at its end, or else why it ended before its last step."""
    return str(result.get("message") or result.get("reason") or "")


def _fits(flow: FlowFile) -> bool:
    """Return whether operators and edges are numbered by their places, and edges join operators of the flow."""
    numbers = [op.id for op in flow.ops], [edge.id for edge in flow.edges]
    numbered = all(found == list(range(len(found))) for found in numbers)
    return numbered and all(0 <= op < len(flow.ops) for edge in flow.edges for op in (edge.src, edge.dst))


def _line_begin(path: Path, at: int) -> int:
    """Return the byte at which the first line behind `at` begins."""
    with open_regular(path) as file:
        file.seek(at)
        return at + len(file.readline())


def _last_line_end(path: Path, start: int) -> int:
    """Return the byte behind the last whole line of a file; `start` if there is none behind `start`."""
    with open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(start, size - LAST_BYTES)
        file.seek(begin)
        found = file.read(size - begin).rfind(b"\n") if size > begin else -1
    return begin + found + 1 if found >= 0 else start


def _json(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(content_in(path.parent, path.name), type=kind)
    except (OSError, *UNDECODABLE):
        return None
