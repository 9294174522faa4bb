"""The runs that the viewer shows, and what it knows of each. Reading is bounded, and happens while nobody waits."""

from __future__ import annotations

import threading
import time
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

__all__ = ["Look", "Runs", "Viewed"]

FRESH_S = 3.0
"""Seconds for which a look counts as new. A look that took long counts five times as long as it took."""
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


class Viewed:
    """One run. Its methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.resolve().name
        self.facts = RunFacts(path)
        self.run = LivingRun(path)
        self.lock = threading.RLock()
        self._look: Look | None = None
        self._due = 0.0
        self._looking = threading.Lock()

    def live(self) -> bool:
        """Return whether a process of the job is alive on this machine. A copied folder is never alive."""
        return is_held(self.path) and not self.facts.result()

    def state(self) -> str:
        """Return the state in a word: the result's status, ``running``, ``died``, or ``new``."""
        said = self.facts.summary().state
        return ("running" if self.live() else "died") if said == "began" else said

    def look(self) -> Look:
        """Return the latest look. Only the first call waits; later ones renew it in the background."""
        found = self._look
        if found is None:
            with self._looking:
                return self._look or self._renew()
        if time.monotonic() > self._due and self._looking.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True, name=f"look {self.name}").start()
        return found

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._looking.release()

    def _renew(self) -> Look:
        began = time.monotonic()
        facts = RunFacts(self.path)  # its own, so that requests do not wait for it
        since, until = facts.window(WINDOW_S)
        uses = facts.uses(since, until)
        roles = {
            role: overall(use for ref, use in uses.items() if ref.role == role) for role in {ref.role for ref in uses}
        }
        flow = facts.flow()
        edges = edge_uses(flow, uses) if flow else []
        shorter = int((until - since) * min(1.0, CRITICAL_RANKS / max(1, len(uses))))
        critical = facts.critical(until - shorter, until) if flow else None
        found = advice(Evidence(uses, edges, facts.stories(), facts.series()))
        self._look = Look(since, until, uses, roles, edges, critical, found)
        ended = time.monotonic()
        self._due = ended + max(FRESH_S, 5 * (ended - began))
        return self._look


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
