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
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.extensions.hangs.picture import Picture, Wait, works
from rolemesh_durable.extensions.phases import ADDED
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import BLOCKED, COMPUTING, SAVING, WAITING

__all__ = ["HangVerdict", "culprit"]

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
    picture = Picture(graph, reports, world_sizes, collective, turns)
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
    picture: Picture, key: RankRef, waits: Mapping[RankRef, Wait], behind: Mapping[RankRef, RankRef]
) -> HangVerdict:
    report, operator = picture.live[key], picture.operator(key)
    chain = tuple(f"{who} waits for {whom} {waits[who].why}" for who, whom in behind.items())
    told = [_position(picture, key), *chain[:MAX_TOLD]]
    if waits[key].whom:
        circle = f"it waits for {waits[key].whom[0]} {waits[key].why}"
        told.insert(1, f"they wait for each other in a circle: {circle}")
    if len(chain) > MAX_TOLD:
        told.append(f"{len(chain) - MAX_TOLD} more wait for these")
    computing = report.state == "ready" and works(report) and not report.frozen
    return HangVerdict(key[0], key[1], operator, report.step, chain, "; ".join(told), computing)


def _position(picture: Picture, key: RankRef) -> str:
    """``trainer/1 has been in train at step 7 for 31 s``, and what is strange about it."""
    report, mates = picture.live[key], picture.mates(key)
    for_s = f"for {report.since_s:.0f} s"
    if report.state != "ready":
        return f"{key} has not become ready: it is {report.state}" + (" (stopped by a signal)" * report.frozen)
    who = f"{', '.join(map(str, mates))} have" if len(mates) > 1 else f"{key} has"
    at = f"{picture.operator(key).removeprefix(f'{key[0]}.')} at step {report.step}"
    edge = picture.edge(report)
    if report.phase in ADDED:
        where, strange = ADDED[report.phase].told(picture, report, at, for_s)
    elif report.phase == COMPUTING:
        where, strange = f"been in {at} {for_s}", ""
    elif report.phase == WAITING and edge is not None:
        where = f"waited in {at} {for_s} for {edge.param} from {picture.graph.ops[edge.src].label}"
        strange = ", which has been sent"
    elif report.phase == BLOCKED and edge is not None:
        where = f"been blocked in {at} {for_s} until {picture.graph.ops[edge.dst].label} takes {edge.param}"
        strange = ", which has been taken"
    elif report.phase == SAVING:
        where, strange = f"been taking its snapshot of step {report.step} {for_s}", ""
    else:
        done = f"after step {report.finished}" if report.finished >= 0 else "before the first step"
        where, strange = f"waited for the master to let it run further {done} {for_s}", ", though nobody is slower"
    if report.frozen:
        strange = " (stopped by a signal)"
    elif picture.wait(key).whom:
        strange = ""
    return f"{who} {where}{strange}"
