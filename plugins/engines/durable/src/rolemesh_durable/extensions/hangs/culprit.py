"""The rank to blame for a hang: follows the waits between ranks, from the positions that ranks have reported. Pure.

The wait-for graph is that of deadlock detection in distributed systems (Knapp 1987, "Deadlock detection in distributed
databases", section 2). A rank runs one call at a time, so a wait has one cause here, but the rank may wait for several
ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Route
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import (
    BLOCKED,
    CALLING,
    COMPUTING,
    FOLLOWING,
    GATHERING,
    IDLE,
    LOADING,
    SAVING,
    SERVING,
    TURN,
    WAITING,
    called_at,
)

__all__ = ["HangVerdict", "culprit"]

BUSY = (COMPUTING, SERVING, LOADING, SAVING)
"""Phases in which a rank works, so that it waits for nobody, or only for its group."""
DEAF = (COMPUTING, SAVING)
"""Phases in which a rank handles no messages."""
MAX_TOLD = 6
"""Maximum number of waits in the verdict's text; `HangVerdict.chain` has all of them."""


class HangVerdict(NamedTuple):
    """The rank that the others wait for, directly or through others.

    `operator` is the label of its call ("" between steps, "snapshot" while it takes one) and `step` its step. `chain`
    lists the waits from the culprit outwards. `text` says all of it for a person. `computing`: as far as the reports
    show, the rank works.
    """

    role: str
    rank: int
    operator: str
    step: int
    chain: tuple[str, ...]
    text: str
    computing: bool = False

    @property
    def ref(self) -> RankRef:
        """The rank that the others wait for."""
        return RankRef(self.role, self.rank)


class _Wait(NamedTuple):
    """A rank's wait: the ranks in `whom` (empty: the rank itself is at fault), and the reason in words."""

    whom: tuple[RankRef, ...]
    why: str


def culprit(
    graph: LogicalGraph,
    reports: Mapping[RankRef, RankReport],
    world_sizes: Mapping[str, int],
    *,
    collective: Collection[str] = (),
    turns: Mapping[RankRef, Collection[RankRef]] = MappingProxyType({}),
) -> HangVerdict:
    """Name the rank at the end of the waits. Call this when no rank has made progress for a long time.

    `reports` are the newest ones. `collective` are the roles whose ranks wait for each other inside an operator.
    `turns` holds, by rank, the ranks that take turns on its slot. Ranks that wait for no rank are candidates: first one
    that a signal stopped, then one that is not set up, then the one that most ranks wait for. If ranks wait for each
    other in a circle, the culprit is the one with the least progress. Members of a group that are in the same call look
    alike from outside: the verdict names the first, and its text names all.

    Raises `ValueError` if all ranks are done.
    """
    picture = _Picture(graph, reports, world_sizes, collective, turns)
    if not picture.live:
        raise ValueError("every rank is done: nobody hangs")
    waits = {key: picture.wait(key) for key in picture.live}
    waiters: dict[RankRef, list[RankRef]] = {key: [] for key in waits}
    for key, wait in waits.items():
        for other in wait.whom:
            waiters[other].append(key)
    ends = [key for key, wait in waits.items() if not wait.whom]
    if not ends:
        ends = [min(waits, key=picture.progress)]
    behind = {key: _reached(key, waiters) for key in ends}
    chosen = min(ends, key=lambda key: picture.innocence(key, len(behind[key])))
    return _verdict(picture, chosen, waits, behind[chosen])


class _Picture:
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
        self._turns = turns
        # A rank that is done still sends the values that a restarted one asks for, unless a signal stopped it.
        self.live = {key: report for key, report in reports.items() if report.state != "done" or report.frozen}
        self._activity = Activity(graph)
        self._routes: dict[int, Route] = {}

    def wait(self, key: RankRef) -> _Wait:
        """Return the ranks that `key` waits for, and the reason."""
        report = self.live[key]
        if report.phase == TURN and not report.frozen:
            return self._for_turn(key, report)
        if report.phase == GATHERING and not report.frozen:
            return self._for_group(key, report)
        if report.frozen or report.state != "ready" or report.phase in (SERVING, LOADING):
            return _Wait((), "")
        if report.phase == CALLING:
            return self._for_answer(report)
        if report.phase == FOLLOWING:
            return self._for_callers(key, report)
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
        busy = report.phase in BUSY
        return (0 if report.frozen else 1 if report.state != "ready" else 2, -waiters, not busy)

    def mates(self, key: RankRef) -> list[RankRef]:
        """Return the members of the collective group that are in the same call, `key` included."""
        report = self.live[key]
        if key[0] not in self.collective or report.phase != COMPUTING or report.frozen:
            return [key]
        return [k for k, r in self.live.items() if k[0] == key[0] and self._together(r, report)]

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

    def _for_input(self, key: RankRef, report: RankReport, edge: Edge) -> _Wait:
        delivery, source = delivery_of(edge), self.graph.ops[edge.src]
        senders = [RankRef(source.role, rank) for rank in self._route(edge).sources(key[1])]
        missing: list[RankRef] = []
        for made in delivery.awaited(report.step):
            missing = missing or [k for k in senders if k in self.live and not self._past(self.live[k], edge.src, made)]
        why = f"for {edge.param} of step {report.step - edge.lag} from {source.label}"
        if not missing and delivery.shared is not None:
            # All values have come, but the mates have not sent the items that they took: they do so between two items.
            missing = [k for k, r in self.live.items() if k[0] == key[0] and k != key and r.phase != WAITING]
            why = f"to say what it has taken of {edge.param}"
        # A producer may have to send the value again, to a rank that has restarted. It does not while it is deaf.
        busy = [k for k in senders if k in self.live and self.live[k].phase in DEAF]
        return _Wait(tuple(missing or self._frozen(senders) or busy), why)

    def _for_credit(self, key: RankRef, report: RankReport, edge: Edge) -> _Wait:
        sink = self.graph.ops[edge.dst]
        takers = [RankRef(sink.role, rank) for rank in self._route(edge).targets(key[1])]
        live = [k for k in takers if k in self.live]
        why = f"to take {edge.param} in {sink.label}"
        period = self._activity.periods[edge.dst]
        if period is None:
            return _Wait((), why)
        taken = delivery_of(edge).releasing(report.step, period)
        late = [k for k in live if not self._past(self.live[k], edge.dst, taken)]
        if edge.credits is None:
            # Small values may be further ahead: the consumer that is furthest behind holds the credit.
            late = [k for k in late if self.progress(k) == min(map(self.progress, late))]
        # A consumer acknowledges a value with its next wait, but not while it is deaf.
        busy = [k for k in live if self.live[k].phase in DEAF or self.live[k].frozen]
        return _Wait(tuple(late or busy), why)

    def _for_answer(self, report: RankReport) -> _Wait:
        role, rank = called_at(report.edge, self.graph) or ("", -1)
        asked = [k for k in self.live if k[0] == role and rank in (k[1], -1)]
        return _Wait(tuple(asked), "to answer a call")

    def _for_callers(self, key: RankRef, report: RankReport) -> _Wait:
        callers = {caller for caller, callee in self.graph.callers if callee == key[0]}
        behind = [k for k, r in self.live.items() if k[0] in callers and (r.finished <= report.finished or r.frozen)]
        return _Wait(tuple(behind), "to finish the step in which they call it")

    def _for_turn(self, key: RankRef, report: RankReport) -> _Wait:
        """The rank waits for those on the slot, or else for those whose turn comes first."""
        mates = {k: self.live[k] for k in self._turns.get(key, ()) if k != key and k in self.live}
        there = [k for k, r in mates.items() if r.frozen or r.phase in (COMPUTING, LOADING, SAVING)]
        before = [k for k, r in mates.items() if r.phase != TURN and not self._past(r, report.op, report.step)]
        return _Wait(tuple(there or before), "for its turn on their slot")

    def _for_group(self, key: RankRef, report: RankReport) -> _Wait:
        mates = {k: r for k, r in self.live.items() if k[0] == key[0] and k != key}
        away = [k for k, r in mates.items() if r.frozen or (r.phase != GATHERING and not _ahead(r, report))]
        return _Wait(tuple(away), "to begin the call together")

    def _in_collective(self, key: RankRef, report: RankReport) -> _Wait:
        if key[0] not in self.collective:
            return _Wait((), "")
        mates = {k: r for k, r in self.live.items() if k[0] == key[0] and k != key}
        missing = [k for k, r in mates.items() if r.frozen or (not self._together(r, report) and not _ahead(r, report))]
        return _Wait(tuple(missing), "in the collective")

    def _for_state(self, key: RankRef, report: RankReport) -> _Wait:
        """The ranks of a group may take their snapshot together, each with its part of the state."""
        if key[0] not in self.collective:
            return _Wait((), "")
        mates = {k: r for k, r in self.live.items() if k[0] == key[0] and k != key}
        return _Wait(tuple(k for k, r in mates.items() if r.frozen or r.finished < report.finished), "in the snapshot")

    def _for_the_slowest(self, key: RankRef, report: RankReport) -> _Wait:
        """The rank waits for a grant, or for a commit that frees retained values: both depend on the slowest rank.

        No consumer sees a group's value before all ranks of the group have made their part.
        """
        if report.phase == BLOCKED and key[0] in self.collective:
            late = [
                k for k, r in self.live.items() if k[0] == key[0] and r.phase == COMPUTING and not _ahead(r, report)
            ]
            if late:
                return _Wait(tuple(late), "to make its part of the value")
        others = {k: r for k, r in self.live.items() if k != key}
        slowest = min((r.finished for r in others.values()), default=report.finished)
        if slowest < report.finished:
            return _Wait(tuple(k for k, r in others.items() if r.finished == slowest), "to finish a step")
        unsafe = min((r.durable for r in others.values()), default=report.durable)
        if unsafe < report.durable:
            return _Wait(tuple(k for k, r in others.items() if r.durable == unsafe), "to have its snapshot durable")
        stopped = [k for k, r in others.items() if r.frozen]
        return _Wait(tuple(stopped), "to finish a step")

    # ---------------------------------------------------------------------------------------------------- relations

    def _route(self, edge: Edge) -> Route:
        if edge.id not in self._routes:
            m, n = (self.sizes[self.graph.ops[op].role] for op in (edge.src, edge.dst))
            self._routes[edge.id] = delivery_of(edge).route(m, n)
        return self._routes[edge.id]

    def _past(self, report: RankReport, op: int, step: int) -> bool:
        """Return True if a rank has left call `op` of `step` behind."""
        return report.finished >= step or report.step > step or (report.step == step and report.op > op)

    def _frozen(self, keys: Collection[RankRef]) -> list[RankRef]:
        return [k for k in keys if k in self.live and self.live[k].frozen]

    def _together(self, one: RankReport, other: RankReport) -> bool:
        return (one.step, one.op, one.phase) == (other.step, other.op, other.phase)


def _ahead(one: RankReport, other: RankReport) -> bool:
    """Return True if `one` has left the call that `other` is in."""
    left = one.finished >= other.step or (one.step, one.op) > (other.step, other.op)
    return left or ((one.step, one.op) == (other.step, other.op) and one.phase == BLOCKED)


def _reached(key: RankRef, waiters: Mapping[RankRef, list[RankRef]]) -> dict[RankRef, RankRef]:
    """Everybody who waits for `key`, nearest first, with whom each waits for on the way."""
    found: dict[RankRef, RankRef] = {}
    queue = [key]
    for at in queue:
        for waiter in waiters[at]:
            if waiter != key and waiter not in found:
                found[waiter] = at
                queue.append(waiter)
    return found


def _verdict(
    picture: _Picture, key: RankRef, waits: Mapping[RankRef, _Wait], behind: Mapping[RankRef, RankRef]
) -> HangVerdict:
    report, operator = picture.live[key], picture.operator(key)
    chain = tuple(f"{who} waits for {whom} {waits[who].why}" for who, whom in behind.items())
    told = [_position(picture, key), *chain[:MAX_TOLD]]
    if waits[key].whom:
        circle = f"it waits for {waits[key].whom[0]} {waits[key].why}"
        told.insert(1, f"they wait for each other in a circle: {circle}")
    if len(chain) > MAX_TOLD:
        told.append(f"{len(chain) - MAX_TOLD} more wait for these")
    computing = report.state == "ready" and report.phase in BUSY and not report.frozen
    return HangVerdict(key[0], key[1], operator, report.step, chain, "; ".join(told), computing)


def _position(picture: _Picture, key: RankRef) -> str:
    """``trainer/1 has been in train at step 7 for 31 s``, and what is strange about it."""
    report, mates = picture.live[key], picture.mates(key)
    for_s = f"for {report.since_s:.0f} s"
    if report.state != "ready":
        return f"{key} has not become ready: it is {report.state}" + (" (stopped by a signal)" * report.frozen)
    who = f"{', '.join(map(str, mates))} have" if len(mates) > 1 else f"{key} has"
    at = f"{picture.operator(key).removeprefix(f'{key[0]}.')} at step {report.step}"
    edge = picture.edge(report)
    if report.phase == COMPUTING:
        where, strange = f"been in {at} {for_s}", ""
    elif report.phase == WAITING and edge is not None:
        where = f"waited in {at} {for_s} for {edge.param} from {picture.graph.ops[edge.src].label}"
        strange = ", which has been sent"
    elif report.phase == BLOCKED and edge is not None:
        where = f"been blocked in {at} {for_s} until {picture.graph.ops[edge.dst].label} takes {edge.param}"
        strange = ", which has been taken"
    elif report.phase == CALLING:
        called = called_at(report.edge, picture.graph) or RankRef("", -1)
        whom = str(called) if called.rank >= 0 else f"a rank of {called.role}"
        where, strange = f"waited in {at} {for_s} for {whom} to answer a call", ", which is done"
    elif report.phase == SERVING:
        where, strange = f"been in a call of another role {for_s}", ""
    elif report.phase == FOLLOWING:
        where, strange = f"waited {for_s} for its callers, after step {report.finished}", ", which are further"
    elif report.phase == GATHERING:
        where, strange = f"waited {for_s} for its group before {at}", ", though all are there"
    elif report.phase == SAVING:
        where, strange = f"been taking its snapshot of step {report.step} {for_s}", ""
    elif report.phase == LOADING:
        where, strange = f"loaded for its turn, or made room, {for_s} before {at}", ""
    elif report.phase == TURN:
        where, strange = f"waited {for_s} for its turn before {at}", ", though nobody is before it"
    else:
        done = f"after step {report.finished}" if report.finished >= 0 else "before the first step"
        where, strange = f"waited for the master to let it run further {done} {for_s}", ", though nobody is slower"
    if report.frozen:
        strange = " (stopped by a signal)"
    elif picture.wait(key).whom:
        strange = ""
    return f"{who} {where}{strange}"
