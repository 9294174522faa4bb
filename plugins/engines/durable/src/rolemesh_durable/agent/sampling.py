"""An agent's look at its node: the status pages of its ranks, their snapshots, and problems."""

from __future__ import annotations

import logging
import time

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_durable.agent.parts import Parts
from rolemesh_durable.agent.status_pages import StatusPages
from rolemesh_durable.protocol.agent.events import RankSample, Sampled
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.rank.page import BLOCKED, COMPUTING, WAITING
from rolemesh_durable.rank.status_page import Position
from rolemesh_processes.facts import is_stopped, worked_s
from rolemesh_processes.reserve import Reserve

__all__ = ["Sampler"]

LOG = logging.getLogger(__name__)
FROZEN_AFTER_NS = 1_000_000_000
"""Nanoseconds in one phase after which a rank is examined, because a signal may have stopped it."""


class Sampler:
    """Reads everything that is not reported: see `Sampled`."""

    def __init__(
        self,
        status_pages: StatusPages,
        memory: NodeMemory,
        reserve: Reserve,
        parts: Parts,
        timed: LogicalGraph | None = None,
    ) -> None:
        """`timed`: the job's graph, if the waits of ranks on each of its edges are needed."""
        self._status_pages, self._memory, self._reserve, self._parts = status_pages, memory, reserve, parts
        self._edges: dict[str, list[int]] = {}
        if timed is not None:
            ends = [(edge.id, {timed.ops[edge.src].role, timed.ops[edge.dst].role}) for edge in timed.edges]
            self._edges = {role: [edge for edge, roles in ends if role in roles] for role in timed.roles}
        self._unreadable: set[RankRef] = set()

    def sample(self, covered: int, making: tuple[str, ...], dropped: int) -> Sampled:
        """Return a sample. `covered` is the newest complete checkpoint on disk, `dropped` counts invalid messages."""
        now = time.monotonic_ns()
        positions = list(self._status_pages.read())
        status_pages = tuple(self._sampled(launch, at, now) for launch, at in positions)
        persisted = self._memory.persisted(covered)
        seen, reports, given_up = self._parts.look(), self._parts.report(), self._memory.given_up
        refusals = self._status_pages.refused + sum(at.refused for _, at in positions) + seen.refused + dropped
        stored, wrong = (*self._memory.stored(), *seen.stored), self._wrong(positions, seen.warning)
        return Sampled(status_pages, stored, persisted, wrong, making, refusals, given_up, seen.address, reports)

    def _wrong(self, positions: list[tuple[RankLaunch, Position]], of_parts: str) -> str:
        """Return the problem that this node waits on, "" if there is none."""
        full = self._reserve.full if any(at.short for _, at in positions) else self._reserve.warning
        texts = self._memory.warning, of_parts, full
        return "; ".join(text for text in texts if text)

    def _sampled(self, launch: RankLaunch, at: Position, now: int) -> RankSample:
        since = max(0, now - at.since_ns) if at.since_ns else 0
        return RankSample(
            launch.role,
            launch.rank,
            launch.generation,
            at.pid,
            finished=at.finished,
            durable=self._durable(launch.role, launch.rank, at.snapshot),
            step=at.step,
            op=at.op,
            phase=at.phase,
            edge=at.edge,
            since_s=since * 1e-9,
            frozen=since > FROZEN_AFTER_NS and is_stopped(at.pid),
            busy_s=at.busy_ns * 1e-9,
            worked_s=worked_s(at.pid) if launch.collective else 0.0,
            done=at.done,
            total=at.total,
            layout=at.layout,
            calls=at.calls,
            answered=at.answered,
            times=self._times(launch, at, since) if self._edges else {},
        )

    def _times(self, launch: RankLaunch, at: Position, since: int) -> dict[int, float]:
        times = self._status_pages.waits(launch.ref, self._edges[launch.role])
        if at.phase in (WAITING, BLOCKED) and at.edge in times:
            times[at.edge] += since
        times[-1] = at.computed_ns + (since if at.phase == COMPUTING else 0)
        return {edge: ns * 1e-9 for edge, ns in times.items()}

    def _durable(self, role: str, rank: int, snapshot: int) -> int:
        """Return the durable step of a rank. If it cannot be read, only this rank counts as not durable."""
        try:
            durable = self._memory.durable(role, rank, snapshot)
        except (OSError, RolemeshError) as error:
            if (role, rank) not in self._unreadable:
                LOG.warning("the snapshots of %s/%d cannot be read: %s", role, rank, error)
            self._unreadable.add(RankRef(role, rank))
            return -1
        self._unreadable.discard((role, rank))
        return self._parts.durable(RankRef(role, rank), durable) if durable >= 0 else durable
