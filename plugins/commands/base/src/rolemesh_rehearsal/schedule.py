"""The next failure, decided by the seed, the rehearsal's targets, and the living processes. Pure."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rolemesh.api.observer import JobStatus
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.api.jobs import FaultKind
from rolemesh_rehearsal.spec import Rehearsal, kind_of

__all__ = [
    "Fault",
    "Moment",
    "Passing",
    "children_killed",
    "furthest",
    "has_hit",
    "is_lost",
    "is_recovering",
    "is_told",
    "may_appear",
    "moments",
    "next_fault",
    "order_of",
    "orders",
    "progress",
    "why_none",
]

KILLING = ("kill", "stop", "exit", "raise", "zygote", "child")
ALIVE = ("up", "ready", "running")
AGAIN = 0.25
"""Share of the failures that follow the previous one at once, while the job is still recovering."""
AGAIN_S = 0.4
"""Maximum seconds between such two failures."""


CHILDREN = 0.6
"""Share of the steps in which children of ranks are killed: the first ones."""


class Fault(NamedTuple):
    """A failure. `target` is that of `rolemesh_durable.api.jobs.InjectFault`."""

    kind: FaultKind
    target: str


class Passing:
    """When all ranks passed which step, as the rehearsal's looks at the job show it."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._times: list[float] = []
        self._lasted: list[float] = []

    def look(self, step: int, now: float) -> None:
        """Note that all ranks have reached `step`."""
        if self._steps and step <= self._steps[-1]:
            return
        if self._steps and self._steps[-1] >= 0:
            insort(self._lasted, (now - self._times[-1]) / (step - self._steps[-1]))
        self._steps.append(step)
        self._times.append(now)

    @property
    def pace(self) -> float:
        """The seconds of a step that no failure disturbs: three quarters of the steps took at least that long. inf
        before the first step has ended."""
        return self._lasted[len(self._lasted) // 4] if self._lasted else math.inf

    def at(self, step: int) -> float:
        """Return when all ranks had reached `step`, or when the last look showed less."""
        return self._times[min(bisect_left(self._steps, step), len(self._times) - 1)]


class Moment(NamedTuple):
    """The time and the target of a failure.

    It comes when all ranks have passed `step`, and the part `share` (0 to 1) of a step later; or, with `again`,
    `share` * `AGAIN_S` seconds after the previous failure. `number` counts the moments of a rehearsal.
    """

    step: int
    share: float
    again: bool
    target: str
    number: int = 0


def moments(rehearsal: Rehearsal, steps: int) -> list[Moment]:
    """Return the moments of all failures in order, spread over the job's steps and over each step.

    All targets come equally often.
    """
    rng = random.Random(f"moments {rehearsal.seed}")
    at = sorted(rng.randrange(-1, max(0, steps - 1)) for _ in range(rehearsal.kills))
    targets: list[str] = []
    while len(targets) < rehearsal.kills:
        targets += rng.sample(rehearsal.targets, len(rehearsal.targets))
    # A rank starts processes while it works, and must have steps left for it.
    early = [
        (int(step * CHILDREN) if kind_of(each)[0] == "child" else step) for step, each in zip(at, targets, strict=False)
    ]
    found: list[Moment] = []
    for step, target in sorted(zip(early, targets, strict=False), key=lambda each: each[0]):
        again = bool(found) and rng.random() < AGAIN
        found.append(Moment(found[-1].step if again else step, rng.random(), again, target, len(found)))
    shares = iter(sorted((each.step, each.share) for each in found if not each.again))
    return [each if each.again else each._replace(share=next(shares)[1]) for each in found]


def furthest(seen: Mapping[RankRef, int], status: JobStatus) -> dict[RankRef, int]:
    """Return the furthest step of each rank, now or `seen` before. A rank that was restarted may repeat steps."""
    return {rank.ref: max(rank.step, seen.get(rank.ref, 0)) for rank in status.ranks}


def progress(seen: Mapping[RankRef, int], status: JobStatus) -> int:
    """Return the step that all ranks have reached, from the furthest step `seen` of each.

    A rank that computes nothing is far ahead of the others. Ranks that wait for a step may not have told a new agent
    theirs so far, but they have all finished a committed one.
    """
    return max(status.committed, min(seen.values(), default=-1))


def is_recovering(status: JobStatus) -> bool:
    """Return whether a rank is dead or starting, or waits for its restart: the effect of a failure may show later."""
    return any(rank.state not in (*ALIVE, "done") for rank in status.ranks)


def has_hit(fault: Fault, before: JobStatus, now: JobStatus) -> bool:
    """Return whether the target differs from its state `before`: it has restarted, or is about to.

    A fault that kills nothing has taken effect when the master has accepted it. No status shows a killed child.
    """
    if fault.kind not in KILLING:
        return True
    if fault.kind == "child":
        return False
    what, _, name = fault.target.partition(":")
    if fault.target == "master":
        return now.epoch > before.epoch
    if fault.kind == "zygote":
        nodes = {agent.node for agent in before.agents if agent.agent == name}
        there = {rank.ref: rank.generation for rank in before.ranks if rank.node in nodes}
        return any(rank.generation > there.get(rank.ref, rank.generation) for rank in now.ranks)
    if what in ("agent", "node"):
        were = {agent.agent: agent.pid for agent in before.agents if name in (agent.agent, agent.node)}
        are = {agent.agent: agent.pid for agent in now.agents if agent.state == "up"}
        return any(are.get(agent) != pid for agent, pid in were.items())
    generations = {str(rank.ref): rank.generation for rank in before.ranks}
    return any(rank.generation > generations[who] for rank in now.ranks if (who := str(rank.ref)) == fault.target)


def is_lost(fault: Fault, before: JobStatus, now: JobStatus) -> bool:
    """Return whether the agent no longer knows of a fault `child` that was injected `before`.

    The order goes with the rank's process, and with the agent or the master that passed it on.
    """
    return fault.kind == "child" and _holders(fault.target, before) != _holders(fault.target, now)


def _holders(name: str, status: JobStatus) -> tuple[Any, ...]:
    """Return the processes that know of an order to kill a child of this rank."""
    ranks = [(rank.node, rank.generation) for rank in status.ranks if str(rank.ref) == name]
    nodes = {node for node, _ in ranks}
    return status.epoch, *ranks, *sorted((a.agent, a.pid) for a in status.agents if a.node in nodes)


def may_appear(status: JobStatus, pending: Sequence[Fault]) -> bool:
    """Return whether a target that is missing now may be there soon: something restarts, or is about to."""
    nodes = {agent.node for agent in status.agents if agent.state != "up"}
    restarting = is_recovering(status) or any(rank.node in nodes for rank in status.ranks)
    return restarting or any(fault.kind in KILLING and fault.kind != "child" for fault in pending)


def why_none(target: str, status: JobStatus, nodes_left: int | None = None) -> str:
    """Return why nothing suits a target, as a clause about it."""
    kind, who = kind_of(target)
    what = "node" if kind == "node" else "agent"
    if who and "/" not in who and who not in {getattr(agent, what) for agent in status.agents}:
        return f"there is no {what} {who!r}; rolemesh status shows the names"
    if kind == "node" and nodes_left is not None and nodes_left < 2:
        return "only one node is left"
    called = [rank for rank in status.ranks if who in ("", str(rank.ref), f"{rank.role}/*")]
    if kind in ("rank", "stop", "full") and called and all(rank.state == "done" for rank in called):
        return "it has finished its work"
    return "it is not alive, or has no rank"


def is_told(fault: Fault, events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the events of an ended job show the effect of a failure that no status could show."""
    at = [n for n, event in enumerate(events) if order_in(event) == order_of(fault)]
    return bool(at) and any(fault.target in _failed(event, fault.kind) for event in events[at[-1] :])


def order_of(fault: Fault) -> tuple[str, str]:
    """Return kind and target as the event ``injected`` of this failure has them: it names an agent without a prefix."""
    return fault.kind, fault.target.removeprefix("agent:")


def order_in(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return kind and target of an event ``injected``; None for another event."""
    return (event["data"]["kind"], event["data"]["target"]) if event["kind"] == "injected" else None


def orders(events: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """Return how many failures of each kind and target the master has carried out, as events report them."""
    return Counter(order for event in events if (order := order_in(event)) is not None)


def children_killed(events: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many children of each rank events report as killed."""
    return Counter(event["data"]["target"] for event in events if event["kind"] == "child_killed")


def _failed(event: Mapping[str, Any], kind: FaultKind) -> tuple[str, ...]:
    """Return the processes of an event that have failed as after a fault of this kind, as targets of faults."""
    data: Mapping[str, Any] = event["data"]
    if kind == "child":
        return (data["target"],) if event["kind"] == "child_killed" else ()
    match event["kind"]:
        case "agent_lost" | "agent_died":
            return f"agent:{data['agent']}", f"node:{data['node']}"
        case "failure":
            return (f"{data['failure']['role']}/{data['failure']['rank']}",)
        case "master_recovered":
            return ("master",)
    return ()


def busy(pending: Sequence[Fault], status: JobStatus) -> set[str]:
    """Return the targets that must not fail now, because one of the `pending` failures concerns them. If two failures
    hit one target, nobody could tell whether one or both took effect. A child that is to be killed disturbs nothing:
    its death is an event of its own."""
    found = {fault.target for fault in pending if fault.kind in KILLING and fault.kind != "child"}
    node_of = {f"agent:{agent.agent}": agent.node for agent in status.agents}
    at = {str(rank.ref): rank.node for rank in status.ranks}
    nodes = {
        node_of.get(target, target.removeprefix("node:")) for target in found if target.startswith(("agent:", "node:"))
    }
    hosts = {at[target] for target in found if target in at}
    roles = {target.partition("/")[0] for target in found if "/" in target}  # they may come back as a group
    return {
        *found,
        *(rank for rank, node in at.items() if node in nodes or rank.partition("/")[0] in roles),
        *(agent for agent, node in node_of.items() if node in nodes | hosts),
        *(f"node:{node}" for node in nodes | hosts),
    }


def next_fault(
    rng: random.Random,
    target: str,
    status: JobStatus,
    released: int = 1 << 62,
    pending: Sequence[Fault] = (),
    nodes_left: int | None = None,
) -> Fault | None:
    """Return a failure of something that is alive now, or None if there is no such target.

    The last of the `nodes_left` that the job can use is never taken away; None: the job uses the nodes of its agents.
    No step after `released` is granted, so a rank that has reached it calls no operator that could raise. `pending` are
    the failures that have not shown so far.
    """
    taken = busy(pending, status)
    kind, who = kind_of(target)
    names = {str(r.ref): {"", str(r.ref), f"{r.role}/*"} for r in status.ranks if r.state in ALIVE}
    ranks = [name for name, called in names.items() if name not in taken and who in called]
    agents = [a.agent for a in status.agents if a.state == "up" and f"agent:{a.agent}" not in taken]
    agents = [agent for agent in agents if who in ("", agent)]
    nodes = sorted({a.node for a in status.agents if a.state == "up"})
    hosts = {rank.node for rank in status.ranks if rank.state in ALIVE}
    nodes_left = len(nodes) if nodes_left is None else nodes_left
    free = [node for node in nodes if f"node:{node}" not in taken and who in ("", node)]
    if kind == "child":
        ordered = {fault.target for fault in pending if fault.kind == "child"}
        ranks = [rank for rank in ranks if rank not in ordered]
    if kind == "zygote":
        agents = [each.agent for each in status.agents if each.agent in agents and each.node in hosts]
    if who and kind in ("stop", "full", "child"):
        return Fault(kind, rng.choice(ranks)) if ranks else None
    match kind:
        case "master" | "stop" if "master" in taken:
            return None
        case "rank" if ranks:
            fault = Fault(rng.choice(("kill", "kill", "exit", "raise")), rng.choice(ranks))
            held = {str(rank.ref) for rank in status.ranks if rank.step >= released}
            return fault._replace(kind="kill") if fault.kind == "raise" and fault.target in held else fault
        case "agent" if agents:
            return Fault("kill", f"agent:{rng.choice(agents)}")
        case "master":
            return Fault("kill", "master")
        case "stop":
            who = rng.choice(("rank", "agent", "master"))
            if who == "rank" and ranks:
                return Fault("stop", rng.choice(ranks))
            if who == "agent" and agents:
                return Fault("stop", f"agent:{rng.choice(agents)}")
            return Fault("stop", "master")
        case "node" if nodes_left > 1 and free:
            return Fault("kill", f"node:{rng.choice(free)}")
        case "disk" | "zygote" if agents and (ranks or who):
            return Fault(kind, f"agent:{rng.choice(agents)}")
        case "full":
            return Fault("full", rng.choice(("master", *(f"agent:{agent}" for agent in agents), *ranks)))
        case "clock":
            return Fault("clock", rng.choice(("master", *(f"agent:{agent}" for agent in agents))))
        case "stall":
            return Fault("stall", "master")
    return None
