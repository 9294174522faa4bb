"""Metrics of several ranks merged into one: agents merge a node's ranks, the master merges agents. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rolemesh.api.observer import StepMetrics
from rolemesh.graph.logical import LogicalGraph
from rolemesh.runs.metrics import LineBuilder, Metrics, joined

__all__ = ["LineAssembler", "MetricsMerger"]


class MetricsMerger:
    """Joins the lines of the ranks of each role on one node; a line is complete when all of them have sent theirs.

    Lines are kept rank by rank until they are known to be durable (`forget`), so that they can be sent again, and be
    joined again when ranks come here or leave. A rank that was started again sends some lines twice: they are dropped.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, set[int]] = {}
        self._parts: dict[tuple[str, int], dict[int, Metrics]] = {}
        self._complete: dict[tuple[str, int], Metrics] = {}
        self._fresh: set[tuple[str, int]] = set()
        self._forgotten = -1

    def expect(self, role: str, rank: int) -> None:
        """Lines of `role` need this rank too, also those that were complete without it."""
        self._ranks.setdefault(role, set()).add(rank)
        for key in [key for key in self._complete if key[0] == role and rank not in self._parts[key]]:
            del self._complete[key]
            self._fresh.discard(key)

    def leave(self, role: str, rank: int) -> None:
        """This rank's process is over: what it has told will be told by its successor, maybe elsewhere."""
        self._ranks.get(role, set()).discard(rank)
        for key, parts in list(self._parts.items()):
            if key[0] == role and parts.pop(rank, None) is not None:
                self._complete.pop(key, None)
                self._fresh.discard(key)
                if parts:
                    self._join(key)
                else:
                    del self._parts[key]

    def add(self, rank: int, lines: Iterable[Metrics]) -> None:
        """Take the lines of one rank; a line that this rank has already sent is dropped."""
        for line in lines:
            key = (line.role, line.step)
            if line.step > self._forgotten and rank not in (parts := self._parts.setdefault(key, {})):
                parts[rank] = line
                self._join(key)

    def _join(self, key: tuple[str, int]) -> None:
        parts = self._parts[key]
        if not parts.keys() >= self._ranks.get(key[0], set()):
            return
        self._complete[key] = joined([parts[rank] for rank in sorted(parts)])
        self._fresh.add(key)

    @property
    def pending(self) -> bool:
        """Complete lines have not been taken yet."""
        return bool(self._fresh)

    def take(self) -> tuple[Metrics, ...]:
        """The complete lines since the last call."""
        fresh, self._fresh = self._fresh, set()
        return tuple(self._complete[key] for key in sorted(fresh, key=_by_step))

    def lines(self) -> tuple[Metrics, ...]:
        """All complete lines that are not known to be durable."""
        self._fresh = set()
        return tuple(self._complete[key] for key in sorted(self._complete, key=_by_step))

    def forget(self, step: int) -> None:
        """Lines up to `step` are durable."""
        if step > self._forgotten:
            self._forgotten = step
            self._parts = {key: parts for key, parts in self._parts.items() if key[1] > step}
            self._complete = {key: line for key, line in self._complete.items() if key[1] > step}
            self._fresh = {key for key in self._fresh if key[1] > step}


def _by_step(key: tuple[str, int]) -> tuple[int, str]:
    return key[1], key[0]


PATIENCE_S = 10.0
"""How long a line waits, once its step is committed, for parts that may have died with their agent."""


class LineAssembler:
    """Builds the lines of ``metrics.jsonl`` from the roles' parts, in step order, each once."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int], published: int = -1) -> None:
        """`published`: lines up to this step have been built before."""
        self._graph, self._world_sizes = graph, dict(world_sizes)
        self._builder = LineBuilder(graph, world_sizes)
        self._parts: dict[int, dict[str, dict[str, Metrics]]] = {}
        self._since: dict[int, float] = {}
        """Since when a step has been known to be committed, of which there is a part."""
        self._unsettled = 0.0
        self._agents: frozenset[str] | None = None
        self.published = published

    def written(self, step: int) -> None:
        """Lines up to `step` are on disk: an earlier master may have written some of them late."""
        self.published = max(self.published, step)
        for at in [at for at in self._parts if at <= step]:
            self._drop(at)

    def resized(self, world_sizes: Mapping[str, int]) -> None:
        """All lines from now on are of a new layout: what earlier ranks have told of them is void."""
        self._parts.clear()
        self._since.clear()
        self._world_sizes, self._builder = dict(world_sizes), LineBuilder(self._graph, world_sizes)

    def unsettled(self, now: float) -> None:
        """Ranks are being brought back: they will send again what is missing, however long it takes."""
        self._unsettled = now

    def moved(self, agents: Iterable[str]) -> None:
        """Ranks have moved, and only `agents` have some now: whoever has moved tells its new agent all that is open."""
        self._agents = frozenset(agents)
        for step, by_role in list(self._parts.items()):
            for role, by_agent in list(by_role.items()):
                by_role[role] = {agent: part for agent, part in by_agent.items() if agent in self._agents}
                if not by_role[role]:
                    del by_role[role]
            if not by_role:
                self._drop(step)

    def add(
        self, agent: str, lines: Iterable[Metrics], now: float, committed: int = -1, *, wall: float
    ) -> list[StepMetrics]:
        """Take an agent's parts; return the lines that are complete now.

        `now` (seconds of any monotonic clock) decides how long has been waited; `wall` is written into the lines.

        A part takes the place of one of fewer ranks that this agent has sent before. A line up to `committed` is built
        without a part that has not come 10 s later, with every rank in its place.
        """
        for line in lines if self._agents is None or agent in self._agents else ():
            if line.step > self.published:
                by_agent = self._parts.setdefault(line.step, {}).setdefault(line.role, {})
                if agent not in by_agent or line.ranks >= by_agent[agent].ranks:
                    by_agent[agent] = line
        for step in self._parts:
            # Not since the first part: the slowest rank of a step may take minutes more, and commits it when it comes.
            if step <= committed:
                self._since.setdefault(step, now)
        done: list[StepMetrics] = []
        for step in sorted(self._parts):
            # A report may be lost, or overtaken: then the lines before this one are still to come.
            whole = self._follows(step) and all(self._count(step, role) >= n for role, n in self._world_sizes.items())
            since = max(self._since.get(step, math.inf), self._unsettled)
            if not whole and now <= since + PATIENCE_S:
                break
            done.append(self._builder.build({role: tuple(by.values()) for role, by in self._parts[step].items()}, wall))
            self._drop(step)
            self.published = step
        return done

    def _drop(self, step: int) -> None:
        del self._parts[step]
        self._since.pop(step, None)

    def _follows(self, step: int) -> bool:
        """Whether the line of `step` begins where the last one has ended."""
        return any(
            step - part.steps <= self.published for parts in self._parts[step].values() for part in parts.values()
        )

    def _count(self, step: int, role: str) -> int:
        return sum(part.ranks for part in self._parts[step].get(role, {}).values())
