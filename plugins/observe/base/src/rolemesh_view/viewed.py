"""The runs that the viewer shows, and what it knows of each. Reading is bounded, and happens while nobody waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh.api.observer import StepMetrics
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import CONTROL_FILE, EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_durable.api.jobs import SCRIPT_RUNS, ControlClient, LivingRun, ResizeRequest, find_run, list_runs
from rolemesh_facts import RunFacts
from rolemesh_facts.advice import Advice, Evidence, advice, old_values
from rolemesh_facts.cost import Cost
from rolemesh_facts.critical import Critical, critical_path
from rolemesh_facts.edge_states import EdgeState, edge_states
from rolemesh_facts.finding import hindrance, may_read
from rolemesh_facts.overview import seconds_per_step, under_way
from rolemesh_facts.pieces import stretches
from rolemesh_facts.row_meaning import meaning
from rolemesh_facts.run import LATEST_S
from rolemesh_facts.sizes import sizes_at
from rolemesh_facts.time_use import EdgeUse, Use, edge_uses, overall, reached_step, use_of
from rolemesh_recorder.lines import RECORD_DIR
from rolemesh_recorder.reading import latest_lines, latest_rows
from rolemesh_recorder.usage import KnownUsage
from rolemesh_runtime.lock import is_held
from rolemesh_view.ahead_of_record import Beginning, beginnings, phases, should_write
from rolemesh_view.last_write import QUIET_S, LastWrite
from rolemesh_view.predictions import SETTLING_S, Forecast, Prediction, Resize, forecast, load_of, predicted, resizes
from rolemesh_view.renewed import Renewed
from rolemesh_view.row_index import Reads, RowIndex

__all__ = ["Ahead", "Look", "Runs", "Viewed", "Whole"]

WINDOW_S, RECENT_S = LATEST_S, 10.0
"""Minimum seconds of whole steps at the end of the record for shares of the time, and for rates."""
RECENT_STEPS = 5
"""Minimum number of steps that rates cover; all steps of a shorter run."""
SOON_S = 0.15
"""Seconds that a page waits for the first look at a run."""
STATUS_S = 1.0
"""Maximum number of seconds that the viewer waits for a master to say what its ranks do."""
AWAITED_S = 600.0
"""Maximum number of seconds that predictions wait for the look from which they follow."""
LACKS_S = 0.03
"""Seconds that the first page waits for what the viewer cannot read. Later pages have it."""
USE_RANKS, CRITICAL_RANKS = 1024, 256
"""Numbers of ranks above which the use of time and the critical path cover a shorter time."""
RECORDS = "records of ranks"
RESIZES = 5
"""Number of resizes that the page of the flow shows."""


class Look(NamedTuple):
    """The latest part of a run, from `since` to `until` in µs since 1970, or all of a short one.

    `rate` has the steps per second; None for too few. `states` has the edges in the last `recent_s` of it, and `sizes`
    the present number of ranks by role.
    """

    since: int
    until: int
    uses: Mapping[RankRef, Use]
    roles: Mapping[str, Use]
    edges: Sequence[EdgeUse]
    critical: Critical | None
    advice: Sequence[Advice]
    rate: float | None = None
    states: Sequence[EdgeState] = ()
    recent_s: float = RECENT_S
    sizes: Mapping[str, int] = {}
    age: float = 0.0
    """Seconds since the records were read, if they have changed since then."""


class Ahead(NamedTuple):
    """The forecast for other numbers of ranks, and the latest resizes, each with the share that the model predicted."""

    forecast: Forecast | None
    resizes: Sequence[tuple[Resize, float | None]]
    refusals: Mapping[tuple[str, int], str] = {}
    """Why the job cannot have a predicted number of ranks of a role now, by both; "" if it can."""
    silent: Sequence[str] = ()
    """Roles without an account, which keep the model from a forecast."""
    age: float = 0.0


class Whole(NamedTuple):
    """The begin and the end of a record, in µs since 1970, and its ranks in the order of the flow."""

    begin: int
    end: int
    ranks: Sequence[RankRef]


class Viewed:
    """One run. Its methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.resolve().name
        self.facts = RunFacts(path)
        self.run = LivingRun(path)
        self.reads: Reads = {}
        """Things that the viewer reads now and that take long."""
        self.rows = RowIndex(path, self.reads)
        self.usage = KnownUsage(path)
        self.lock = threading.RLock()
        """A lock around `facts`."""
        self.lanes_lock = threading.Lock()
        """A lock around the reading of lanes: only one answer at a time needs memory for them."""
        own, ahead = RunFacts(path), RunFacts(path)  # each for one thread; they read on from where they were
        self._look = Renewed(lambda: _look(own, self.reads), self._version)
        self._whole = Renewed(lambda: _whole(path), self._version)
        self._lacks = Renewed(lambda: hindrance(path), self._version)
        self._age = Renewed(LastWrite(path).age)
        self._under_way = Renewed(lambda: _under_way(self.run))
        costs = RunFacts(path)
        self._costs = Renewed(lambda: costs.costs(time.time() if self.live() else None), self._version)
        self._predicted: dict[int, float | None] = {}
        self._ahead = Renewed(lambda: _ahead(ahead, self._look.get(AWAITED_S), self._predicted), self._version)

    def live(self) -> bool:
        """Return whether a process of the job is alive on this machine. A copied folder is never alive."""
        return is_held(self.path) and not self.facts.result()

    def _version(self) -> object:
        """Return what changes with the run's folder; None while the run is alive here."""
        if self.live():
            return None
        stamps = []
        for name in (EVENTS_FILE, METRICS_FILE, RESULT_FILE, RECORD_DIR):
            with suppress(OSError):
                found = (self.path / name).stat()
                stamps.append((name, found.st_mtime_ns, found.st_size))
        return stamps

    def state(self) -> str:
        """Return the state in a word: the result's status, ``running``, ``died``, or ``new``."""
        said = self.facts.summary().state
        if said == "new" and not may_read(self.path / EVENTS_FILE):
            return "unreadable"
        return ("running" if self.live() else "died") if said == "began" else said

    def begin(self) -> None:
        """Begin to read before somebody asks: first what each page needs, because the rest would slow that down."""
        with self.lock:
            self.facts.summary()
        for each in (self._look, self._whole, self._lacks, self._ahead):
            each.begin()

    def lacks_soon(self) -> str:
        """Return in words what of the run the viewer cannot read; "" for nothing, and as long as it is not known."""
        return self._lacks.get_within(LACKS_S)[0] or ""

    def quiet_s(self) -> float:
        """Return for how many seconds nothing has been written; 0 for less than `QUIET_S`, and while no rank should."""
        age = self._age.get_within(LACKS_S)[0] if self.live() else None
        return age if age is not None and age >= QUIET_S and should_write(self.facts.events()) else 0.0

    def under_way(self) -> Sequence[str]:
        """Return in words how far the ranks are in their present operators, as their master knows; empty if it does not
        answer."""
        return (self._under_way.get_within(SOON_S)[0] or ()) if self.live() else ()

    def costs_soon(self) -> Sequence[Cost]:
        """Return the cost of each role; empty if there is none yet and the record is large."""
        return self._costs.get_within(SOON_S)[0] or ()

    def beginnings(self) -> list[Beginning]:
        """Return what ranks do that run here and have no record yet."""
        flow = self.facts.flow() if self.live() else None
        return beginnings(self.facts.events(), flow.sizes) if flow is not None else []

    def phases(self) -> Mapping[RankRef, tuple[str, float]]:
        """Return the phase of each of these ranks, and its begin in seconds since 1970."""
        with self.lock:
            flow = self.facts.flow() if self.live() else None
            return phases(self.facts.events(), flow.sizes) if flow is not None else {}

    def look(self) -> Look:
        """Return the latest look at the run."""
        return self._look.get()

    def look_soon(self) -> Look | None:
        """Return the latest look, but do not wait long for the first one: None if the record is large."""
        look, age = self._look.get_within(SOON_S)
        return look._replace(age=age) if look is not None else None

    def ahead_soon(self) -> Ahead | None:
        """Return the latest predictions; None if there are none yet and the record is large."""
        ahead, age = self._ahead.get_within(SOON_S)
        return ahead._replace(age=age) if ahead is not None else None

    def reading(self, *shown: Look | Ahead | None) -> dict[str, Any]:
        """Return what a page says of `shown`.

        `age`: its age in seconds; 0 unless it is out of date. `reads`: something is missing, or is from before the end
        of the run.
        """
        age = max((each.age for each in shown if each is not None), default=0.0)
        return {"reads": None in shown or (age > 0 and not self.live()), "age": age}

    def whole(self) -> Whole:
        """Return the latest extent of the record; up to now while a rank that has a record starts again."""
        found = self._whole.get()
        starts = self.phases().keys() & set(found.ranks)
        return found._replace(end=max(found.end, time.time_ns() // 1000)) if starts else found


def _under_way(run: LivingRun) -> list[str]:
    try:
        status = run.status(STATUS_S)
    except RolemeshError:
        return []
    return under_way(status.ranks) if status is not None else []


def _whole(path: Path) -> Whole:
    facts = RunFacts(path)
    begin, end = facts.window(None)
    flow = facts.flow()
    order = {role: at for at, role in enumerate(dict.fromkeys(op.role for op in flow.ops))} if flow else {}
    return Whole(begin, end, sorted(facts.ranks(), key=lambda ref: (order.get(ref.role, len(order)), ref)))


def _look(facts: RunFacts, reads: Reads) -> Look:
    """Read the end of each rank's record, once: there may be ten thousand. `reads` says meanwhile how many."""
    path = facts.path
    begin, end = facts.window(None)
    flow, refs = facts.flow(), facts.ranks()
    metrics, events = facts.metrics(), facts.events()
    since, until = facts.steps_within(begin, end, WINDOW_S)
    path_since = since
    if len(refs) > CRITICAL_RANKS:
        until = end
        since = max(begin, until - _shorter(WINDOW_S, USE_RANKS, len(refs)))
        path_since = max(begin, until - _shorter(WINDOW_S, CRITICAL_RANKS, len(refs)))
    recent_since, recent_until = facts.steps_within(begin, end, recent_s(metrics))
    if len(refs) > USE_RANKS:
        recent_since, recent_until = max(begin, end - _shorter(recent_s(metrics), USE_RANKS, len(refs))), end
    sizes = sizes_at(flow, events) if flow else {}
    uses, recent, lanes, reached = {}, {}, {}, {}
    for at, ref in enumerate(refs):
        reads[RECORDS] = at, len(refs)
        lines = latest_lines(path, ref.role, ref.rank, min(since, recent_since))
        uses[ref] = use_of(lines, since, until)
        if ref.rank >= sizes.get(ref.role, ref.rank + 1):
            continue  # a resize has ended the rank
        recent[ref] = use_of(lines, recent_since, recent_until)
        if flow:
            lanes[ref] = stretches(lines, path_since, until)
            reached[ref] = reached_step(lines, until)
    reads.pop(RECORDS, None)
    edges = edge_uses(flow, uses) if flow else []
    critical = critical_path(flow, lanes, path_since, until, reached) if flow else None
    last = facts.last_metrics()
    states = edge_states(flow, recent, last.staleness if last else {}) if flow else []
    step_s = seconds_per_step(facts.paced())
    if flow and step_s is not None:  # in whole steps: a part of one would count as none or as a whole one
        every = {edge.id: flow.ops[edge.dst].every for edge in flow.edges}
        states = [state._replace(values_s=1 / step_s / every[state.edge]) for state in states]
    old = old_values(flow, states) if flow else []
    said = [meaning(row.columns) for row in latest_rows(path)]
    found = advice(Evidence(uses, edges, facts.stories(), facts.latest(), old, said, critical))
    rate, seconds = 1 / step_s if step_s is not None else None, (recent_until - recent_since) / 1e6
    return Look(since, until, uses, _by_role(uses), edges, critical, found, rate, states, seconds, sizes)


def recent_s(metrics: Sequence[StepMetrics]) -> float:
    """Return the seconds that rates cover: `RECENT_STEPS` steps, but at least `RECENT_S`."""
    last = metrics[-RECENT_STEPS - 1 :]
    return max(RECENT_S, last[-1].time - last[0].time) if len(last) > 1 else WINDOW_S


def _shorter(seconds: float, ranks: int, found: int) -> int:
    """Return `seconds` in µs, or less if more than `ranks` ranks are `found`."""
    return int(seconds * 1e6 * min(1.0, ranks / max(1, found)))


def _by_role(uses: Mapping[RankRef, Use]) -> dict[str, Use]:
    roles: dict[str, list[Use]] = {}
    for ref, use in uses.items():
        roles.setdefault(ref.role, []).append(use)
    return {role: overall(found) for role, found in roles.items()}


def _ahead(facts: RunFacts, look: Look, known: dict[int, float | None]) -> Ahead:
    """`known` has what the model predicted of former resizes, by their numbers."""
    flow = facts.flow()
    if flow is None:
        return Ahead(None, ())
    events = facts.events()
    lines = facts.metrics() if any(event.kind == "resize_asked" for event in events) else ()
    latest = resizes(flow, events, lines, WINDOW_S)[:RESIZES]
    for each in latest:
        if each.number not in known and not each.refused:
            before = facts.uses(int(each.since * 1e6), int(each.asked * 1e6))
            known[each.number] = predicted(load_of(flow, before, sizes_at(flow, events, each.asked)), each.sizes)
    settled = (int(((each.done or each.asked) + SETTLING_S) * 1e6) for each in latest if not each.refused)
    since, until = max([look.since, *settled]), look.until
    uses = look.uses if since == look.since else facts.uses(since, until)
    sizes = sizes_at(flow, events)
    load = load_of(flow, uses, sizes) if until > since else None
    told = {ref.role for ref, use in uses.items() if use.wall and ref.rank < sizes.get(ref.role, 0)}
    silent = [role for role in sizes if role not in told]
    found = forecast(load) if load else None
    shares = [(each, known.get(each.number)) for each in latest]
    return Ahead(found, shares, _refusals(facts.path, found.predictions if found else ()), silent)


def _refusals(path: Path, predictions: Sequence[Prediction]) -> dict[tuple[str, int], str]:
    """Ask the master of a job that runs here for what it would refuse: all, if it does not answer."""
    found: dict[tuple[str, int], str] = {}
    if not is_held(path):
        return found
    try:
        with ControlClient(path) as client:
            for each in predictions:
                found[each.role, each.then] = ResizeRequest({each.role: each.then}, "").refusal(client)
    except RolemeshError as error:
        found |= {(each.role, each.then): error.what for each in predictions[len(found) :]}
    return found


class Runs:
    """The runs in `folder`, or only the one in `chosen`."""

    def __init__(self, folder: Path, chosen: Path | None = None) -> None:
        self.folder, self._chosen = folder, chosen
        self._known: dict[str, Viewed] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Viewed]:
        """Return the runs, the latest first. A run that is chosen by its folder comes first."""
        paths = [run.path for run in list_runs(self.folder)]
        if self._chosen is not None:
            chosen = self._chosen.resolve()
            paths = [self._chosen, *(path for path in paths if path.resolve() != chosen)]
        return self.note(paths)

    def paths(self) -> list[Path]:
        """Return the folders that may be those of runs, by name, without a look into any of them."""
        found = {} if self._chosen is None else {self._chosen.name: self._chosen}
        for folder in (self.folder, self.folder.parent / SCRIPT_RUNS):
            with suppress(OSError), os.scandir(folder) as entries:
                for each in sorted(entries, key=lambda entry: entry.name):
                    if not each.name.startswith(".") and not each.is_file(follow_symlinks=False):
                        found.setdefault(each.name, Path(each.path))
        return list(found.values())

    def note(self, paths: Sequence[Path]) -> list[Viewed]:
        """Return the runs in `paths`, and know them from now on."""
        found: dict[str, Viewed] = {}
        with self._lock:
            for path in paths:
                name = path.resolve().name
                if name not in found:
                    known = self._known.get(name)
                    found[name] = known if known is not None and known.path == path else Viewed(path)
            self._known = found
        return list(found.values())

    def named(self, name: str) -> Viewed | None:
        """Return the run of a name if it is known, without a look at any folder."""
        return self._known.get(name)

    def folder_of(self, name: str) -> Path:
        """Return the folder of the run of a name, or that of all runs, without a look at it."""
        known = self._known.get(name)
        return known.path if known is not None else self.folder / name

    def closed(self) -> list[str]:
        """Return the names of folders that this user may not read, so that nobody knows whether they are runs."""
        try:
            with os.scandir(self.folder) as entries:
                return sorted(each.name for each in entries if each.is_dir() and not may_read(Path(each.path)))
        except OSError:
            return []

    def find(self, name: str) -> Viewed | None:
        """Return the run of a name; None if there is none. A name is never a path."""
        known = self._known.get(name)
        if known is None and (self.folder / name).parent == self.folder and name != "..":
            with suppress(RolemeshError):  # a look at one folder only: others may be on a store that does not answer
                if (path := find_run(name, self.folder).path) == self.folder / name:
                    known = self._known.setdefault(name, Viewed(path))
        return known if known is not None else next((run for run in self.all() if run.name == name), None)

    def date(self, path: Path) -> float:
        """Return when the run in `path` changed, in seconds since 1970; -1 if no run is there."""
        files = (RUN_FILE, CONTROL_FILE, RESULT_FILE, EVENTS_FILE)
        return path.stat().st_mtime if may_read(path) and any((path / name).is_file() for name in files) else -1.0

    def known(self) -> list[Viewed]:
        """Return the runs that were found last, without a look at the folder."""
        return list(self._known.values())
