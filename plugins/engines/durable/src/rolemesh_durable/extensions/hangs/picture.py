"""The newest reports of all ranks, and what each rank waits for. Pure.

Extensions answer for the phases that they add (`rolemesh_durable.protocol.rank.page.AddedPhase`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Route
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import ADDED, BLOCKED, COMPUTING, IDLE, SAVING, WAITING

__all__ = ["Picture", "Wait", "ahead", "works"]

DEAF = (COMPUTING, SAVING)
"""Phases in which a rank handles no messages."""


class Wait(NamedTuple):
    """A rank's wait: the ranks in `whom` (empty: the rank itself is at fault), and the reason in words."""

    whom: tuple[RankRef, ...]
    why: str


class Picture:
    """The reports, with questions about one or two ranks."""

    def __init__(
        self,
        graph: LogicalGraph,
        reports: Mapping[RankRef, RankReport],
        world_sizes: Mapping[str, int],
        collective: Collection[str],
        turns: Mapping[RankRef, Collection[RankRef]],
    ) -> None:
        self.graph, self.reports, self.sizes, self.collective = graph, reports, world_sizes, collective
        self.turns = turns
        # A rank that is done still sends the values that a restarted one asks for, unless a signal stopped it.
        self.live = {key: report for key, report in reports.items() if report.state != "done" or report.frozen}
        self._activity = Activity(graph)
        self._routes: dict[int, Route] = {}

    def wait(self, key: RankRef) -> Wait:
        """Return the ranks that `key` waits for, and the reason."""
        report = self.live[key]
        added = ADDED.get(report.phase)
        if added is not None and added.waits_for is not None and not report.frozen:
            wait: Wait = added.waits_for(self, key, report)
            return wait
        if report.frozen or added is not None or report.state != "ready":
            return Wait((), "")
        edge = self.edge(report)
        if report.phase == WAITING and edge is not None:
            return self._for_input(key, report, edge)
        if report.phase == BLOCKED and edge is not None:
            return self._for_credit(key, report, edge)
        if report.phase == COMPUTING:
            return self._in_collective(key, report)
        if report.phase == SAVING:
            return self._for_state(key, report)
        return self._for_the_slowest(key, report)

    def progress(self, key: RankRef) -> tuple[int, int, int]:
        """Return a rank's progress: finished step, step, operator call."""
        report = self.reports[key]
        return (report.finished, report.step, report.op)

    def innocence(self, key: RankRef, waiters: int) -> tuple[int, int, bool]:
        """Return a sort key for ranks that wait for no rank; lower is more suspicious.

        `waiters` ranks wait for this one.
        """
        report = self.live[key]
        busy = works(report)
        return (0 if report.frozen else 1 if report.state != "ready" else 2, -waiters, not busy)

    def mates(self, key: RankRef) -> list[RankRef]:
        """Return the members of the collective group that are in the same call, `key` included."""
        report = self.live[key]
        if key[0] not in self.collective or report.phase != COMPUTING or report.frozen:
            return [key]
        return [k for k, r in self.live.items() if k[0] == key[0] and self._together(r, report)]

    def others_of_role(self, key: RankRef) -> dict[RankRef, RankReport]:
        """Return the reports of the other ranks of a rank's role."""
        return {k: r for k, r in self.live.items() if k[0] == key[0] and k != key}

    def edge(self, report: RankReport) -> Edge | None:
        """Return the edge that a rank waits on; None if it waits on no edge."""
        return self.graph.edges[report.edge] if 0 <= report.edge < len(self.graph.edges) else None

    def operator(self, key: RankRef) -> str:
        """Return the label of a rank's call; "" between steps, "snapshot" while it takes one."""
        report = self.reports[key]
        if report.phase == SAVING:
            return "snapshot"
        if report.phase == IDLE or not 0 <= report.op < len(self.graph.ops):
            return ""
        return self.graph.ops[report.op].label

    # ------------------------------------------------------------------------------------------------------- waits

    def _for_input(self, key: RankRef, report: RankReport, edge: Edge) -> Wait:
        delivery, source = delivery_of(edge), self.graph.ops[edge.src]
        senders = [RankRef(source.role, rank) for rank in self._route(edge).sources(key[1])]
        missing: list[RankRef] = []
        for made in delivery.awaited(report.step):
            missing = missing or [k for k in senders if k in self.live and not self.past(self.live[k], edge.src, made)]
        why = f"for {edge.param} of step {report.step - edge.lag} from {source.label}"
        if not missing and delivery.shared is not None:
            # All values have come, but the mates have not sent the items that they took: they do so between two items.
            missing = [k for k, r in self.live.items() if k[0] == key[0] and k != key and r.phase != WAITING]
            why = f"to say what it has taken of {edge.param}"
        # A producer may have to send the value again, to a rank that has restarted. It does not while it is deaf.
        busy = [k for k in senders if k in self.live and self.live[k].phase in DEAF]
        return Wait(tuple(missing or self._frozen(senders) or busy), why)

    def _for_credit(self, key: RankRef, report: RankReport, edge: Edge) -> Wait:
        sink = self.graph.ops[edge.dst]
        takers = [RankRef(sink.role, rank) for rank in self._route(edge).targets(key[1])]
        live = [k for k in takers if k in self.live]
        why = f"to take {edge.param} in {sink.label}"
        period = self._activity.periods[edge.dst]
        if period is None:
            return Wait((), why)
        taken = delivery_of(edge).releasing(report.step, period)
        late = [k for k in live if not self.past(self.live[k], edge.dst, taken)]
        if edge.credits is None:
            # Small values may be further ahead: the consumer that is furthest behind holds the credit.
            late = [k for k in late if self.progress(k) == min(map(self.progress, late))]
        # A consumer acknowledges a value with its next wait, but not while it is deaf.
        busy = [k for k in live if self.live[k].phase in DEAF or self.live[k].frozen]
        return Wait(tuple(late or busy), why)

    def _in_collective(self, key: RankRef, report: RankReport) -> Wait:
        if key[0] not in self.collective:
            return Wait((), "")
        mates = self.others_of_role(key)
        missing = [k for k, r in mates.items() if r.frozen or (not self._together(r, report) and not ahead(r, report))]
        return Wait(tuple(missing), "in the collective")

    def _for_state(self, key: RankRef, report: RankReport) -> Wait:
        """The ranks of a group may take their snapshot together, each with its part of the state."""
        if key[0] not in self.collective:
            return Wait((), "")
        mates = self.others_of_role(key)
        return Wait(tuple(k for k, r in mates.items() if r.frozen or r.finished < report.finished), "in the snapshot")

    def _for_the_slowest(self, key: RankRef, report: RankReport) -> Wait:
        """The rank waits for a grant, or for a commit that frees retained values: both depend on the slowest rank.

        No consumer sees a group's value before all ranks of the group have made their part.
        """
        if report.phase == BLOCKED and key[0] in self.collective:
            late = [k for k, r in self.live.items() if k[0] == key[0] and r.phase == COMPUTING and not ahead(r, report)]
            if late:
                return Wait(tuple(late), "to make its part of the value")
        others = {k: r for k, r in self.live.items() if k != key}
        slowest = min((r.finished for r in others.values()), default=report.finished)
        if slowest < report.finished:
            return Wait(tuple(k for k, r in others.items() if r.finished == slowest), "to finish a step")
        unsafe = min((r.durable for r in others.values()), default=report.durable)
        if unsafe < report.durable:
            return Wait(tuple(k for k, r in others.items() if r.durable == unsafe), "to have its snapshot durable")
        stopped = [k for k, r in others.items() if r.frozen]
        return Wait(tuple(stopped), "to finish a step")

    # ---------------------------------------------------------------------------------------------------- relations

    def _route(self, edge: Edge) -> Route:
        if edge.id not in self._routes:
            m, n = (self.sizes[self.graph.ops[op].role] for op in (edge.src, edge.dst))
            self._routes[edge.id] = delivery_of(edge).route(m, n)
        return self._routes[edge.id]

    def past(self, report: RankReport, op: int, step: int) -> bool:
        """Return True if a rank has left call `op` of `step` behind."""
        return report.finished >= step or report.step > step or (report.step == step and report.op > op)

    def _frozen(self, keys: Collection[RankRef]) -> list[RankRef]:
        return [k for k in keys if k in self.live and self.live[k].frozen]

    def _together(self, one: RankReport, other: RankReport) -> bool:
        return (one.step, one.op, one.phase) == (other.step, other.op, other.phase)


def works(report: RankReport) -> bool:
    """Return True if a rank works, so that it waits for nobody, or only for its group."""
    added = ADDED.get(report.phase)
    return report.phase in DEAF if added is None else added.waits_for is None


def ahead(one: RankReport, other: RankReport) -> bool:
    """Return True if `one` has left the call that `other` is in."""
    left = one.finished >= other.step or (one.step, one.op) > (other.step, other.op)
    return left or ((one.step, one.op) == (other.step, other.op) and one.phase == BLOCKED)
