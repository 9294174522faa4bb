"""The runs that the viewer shows, and what it knows of each. Reading is bounded, and happens while nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.api.jobs import LivingRun, list_runs
from rolemesh_facts import RunFacts
from rolemesh_facts.advice import Advice, Evidence, advice
from rolemesh_facts.critical import Critical
from rolemesh_facts.time_use import EdgeUse, Use, edge_uses, overall
from rolemesh_runtime.lock import is_held
from rolemesh_view.renewed import Renewed

__all__ = ["Look", "Runs", "Viewed", "Whole"]

WINDOW_S = 60.0
CRITICAL_RANKS = 256
"""Number of ranks above which the critical path covers a shorter time."""


class Look(NamedTuple):
    """The latest part of a run, from `since` to `until` in µs since 1970, or all of a short one."""

    since: int
    until: int
    uses: Mapping[RankRef, Use]
    roles: Mapping[str, Use]
    edges: Sequence[EdgeUse]
    critical: Critical | None
    advice: Sequence[Advice]


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
        self.lock = threading.RLock()
        self._look = Renewed(lambda: _look(path))
        self._whole = Renewed(lambda: _whole(path))

    def live(self) -> bool:
        """Return whether a process of the job is alive on this machine. A copied folder is never alive."""
        return is_held(self.path) and not self.facts.result()

    def state(self) -> str:
        """Return the state in a word: the result's status, ``running``, ``died``, or ``new``."""
        said = self.facts.summary().state
        return ("running" if self.live() else "died") if said == "began" else said

    def look(self) -> Look:
        """Return the latest look at the run."""
        return self._look.get()

    def whole(self) -> Whole:
        """Return the latest extent of the record."""
        return self._whole.get()


def _whole(path: Path) -> Whole:
    facts = RunFacts(path)
    begin, end = facts.window(None)
    flow = facts.flow()
    order = {role: at for at, role in enumerate(dict.fromkeys(op.role for op in flow.ops))} if flow else {}
    return Whole(begin, end, sorted(facts.ranks(), key=lambda ref: (order.get(ref.role, len(order)), ref)))


def _look(path: Path) -> Look:
    facts = RunFacts(path)
    since, until = facts.window(WINDOW_S)
    uses = facts.uses(since, until)
    roles = {role: overall(use for ref, use in uses.items() if ref.role == role) for role in {ref.role for ref in uses}}
    flow = facts.flow()
    edges = edge_uses(flow, uses) if flow else []
    shorter = int((until - since) * min(1.0, CRITICAL_RANKS / max(1, len(uses))))
    critical = facts.critical(until - shorter, until) if flow else None
    found = advice(Evidence(uses, edges, facts.stories(), facts.series()))
    return Look(since, until, uses, roles, edges, critical, found)


class Runs:
    """The runs in `folder`, or only the one in `chosen`."""

    def __init__(self, folder: Path, chosen: Path | None = None) -> None:
        self._folder, self._chosen = folder, chosen
        self._known: dict[str, Viewed] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Viewed]:
        """Return the runs, the latest first. A run that is chosen by its folder comes first."""
        paths = [run.path for run in list_runs(self._folder)]
        if self._chosen is not None:
            chosen = self._chosen.resolve()
            paths = [self._chosen, *(path for path in paths if path.resolve() != chosen)]
        found: dict[str, Viewed] = {}
        with self._lock:
            for path in paths:
                name = path.resolve().name
                if name not in found:
                    known = self._known.get(name)
                    found[name] = known if known is not None and known.path == path else Viewed(path)
            self._known = found
        return list(found.values())

    def find(self, name: str) -> Viewed | None:
        """Return the run of a name; None if there is none. A name is never a path."""
        known = self._known.get(name)
        return known if known is not None else next((run for run in self.all() if run.name == name), None)
