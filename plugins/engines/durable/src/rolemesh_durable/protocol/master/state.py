"""What a job has come to, as its journal tells it: `apply` makes it from transitions, and nothing else changes it.

Only how far ranks are (`finished`, `durable`, `JobState.committed`) comes from elsewhere: their agents report it, to
every new master again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from rolemesh.api.failures import Attempt, Failure, RecoveryPlan
from rolemesh.api.rank_ref import RankRef
from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.line_cuts import Cuts
from rolemesh_durable.protocol.master.ladder import Tried
from rolemesh_durable.protocol.master.slices import SLICES, Slice
from rolemesh_durable.protocol.master.transitions import NO_STOP, Status, StopPoint
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = [
    "AgentRecord",
    "JobState",
    "KeptAgent",
    "KeptJob",
    "KeptRank",
    "Leave",
    "Origin",
    "RankRecord",
    "Recovery",
    "place",
]

Phase: TypeAlias = Literal["new", "starting", "running", "stopping", "ended"]
AgentState: TypeAlias = Literal["wanted", "starting", "up", "stopped", "lost"]
RankState: TypeAlias = Literal["starting", "up", "ready", "running", "done", "failed", "halting"]

S = TypeVar("S", bound=Slice)

MOST_FAILURES = 256
MOST_ATTEMPTS = 2048
"""How many failures and recoveries are remembered, of a job that has had more."""


class Origin(msgspec.Struct, frozen=True):
    """The persisted snapshot that this timeline of the job began with; step -1 for none."""

    folder: str = ""
    step: int = -1


class KeptAgent(msgspec.Struct):
    """An agent as the journal tells it."""

    place: AgentPlace
    state: AgentState = "wanted"
    incarnation: int = 0
    """The number of its latest start."""
    pid: int = 0
    host: str = ""
    node_lost: bool = False
    leaving: bool = False
    """Its node leaves: the agent ends once it has no ranks any more."""
    orphans: bool = False
    """It is dead, and its ranks may live: its next incarnation says which, see `adoption`."""
    deaths: int = 0
    """How often it has died in a row since step `died_at` was committed."""
    died_at: int = -1


class AgentRecord(KeptAgent):
    """An agent, and what this master has heard of it."""

    heard: float = 0.0
    """When its newest report came."""
    orphaned_at: float = 0.0
    """Since when, as far as this master knows, its ranks have been without it."""
    seq: int = -1
    """The number of its newest report."""
    report: m.Report | None = None
    """Its newest report."""


class KeptRank(msgspec.Struct):
    """A rank as the journal tells it."""

    launch: m.RankLaunch
    """Its latest start."""
    agent: str
    state: RankState = "starting"
    pid: int = 0
    finished: int = -1
    durable: int = -1
    sha256: str = ""
    verdict: str = ""

    @property
    def alive(self) -> bool:
        """Whether it takes part: up, and neither failed nor being halted."""
        return self.state in ("up", "ready", "running", "done")


class RankRecord(KeptRank):
    """A rank, and what its agent has reported of it."""

    report: m.RankReport | None = None
    """The newest report of the generation in `launch`."""


class Recovery(msgspec.Struct):
    """A recovery that is under way.

    halting: what is left of the ranks is killed, and the plan's delay waited for → origin (only from disk: the newest
    checkpoint that is intact) → placing (only where nodes are to be avoided) → agents: lost ones are started again →
    launching: the ranks start, in a new generation → gone, when all of them are ready. Nothing starts before
    `not_before`; this is number `attempt` of those in a row that have not got the ranks on. A new master begins with
    halting again; `asked` is when it has asked for places. `tried` is what the plan does about each of `failures`.
    """

    number: int
    plan: RecoveryPlan
    failures: list[Failure]
    begun: float
    attempt: int
    tried: tuple[Tried, ...] = ()
    phase: Literal["halting", "origin", "placing", "agents", "launching"] = "halting"
    since: float = 0.0
    asked: float | None = None
    waiting: str = ""

    @property
    def restart(self) -> tuple[RankRef, ...]:
        """The ranks that are started again."""
        return self.plan.restart

    @property
    def not_before(self) -> float:
        """When its ranks may start, at the earliest."""
        return self.begun + self.plan.delay_s


class Leave(msgspec.Struct, frozen=True):
    """A node leaves, as the master has heard at time `heard`: in `notice_s`, or (0) at a time that nobody has said."""

    heard: float
    notice_s: float = 0.0

    def left_s(self, now: float, share: float = 1.0) -> float:
        """The seconds until this share of the notice is over."""
        return self.heard + share * self.notice_s - now if self.notice_s else math.inf


class KeptJob(msgspec.Struct):
    """A job as its journal tells it: encoded, it stands for all events so far.

    It holds no secret: options and variables of roles are in `RoleConfig`.
    """

    agents: Mapping[str, KeptAgent]
    """By name."""
    ranks: Mapping[RankRef, KeptRank]
    steps: int
    """The number of steps that the job file asks for."""
    snapshots: bool
    """Whether ranks take snapshots while the job runs."""
    committed: int
    """The newest step to which all ranks can be restored."""
    persisted: int
    """The newest step whose checkpoint on disk is whole."""
    origin: Origin
    owned: bool
    """The job ends with its driver."""
    phase: Phase = "new"
    status: Status = "done"
    message: str = ""
    """Why the job ends."""
    grace_s: float = 0.0
    """How long ranks may take to end."""
    never_started: bool = True
    """No agent has ever reported."""
    timeline: int = 0
    """How often the whole job has gone back to a persisted snapshot."""
    refused: dict[tuple[str, int], int] = {}
    """The connections that agents have refused, by agent and incarnation (-1: all earlier ones)."""
    failures: list[Failure] = []
    """The failures that plans have taken in, the oldest first."""
    open: list[Failure] = []
    """The failures that no plan has taken in yet."""
    failed_at: list[float] = []
    """When `failures` were, and then `open`."""
    latest: list[Failure] = []
    """The failures that the last decision was about."""
    attempts: list[Attempt] = []
    """The recoveries that levels were charged for."""
    recoveries: int = 0
    """How many recoveries there were."""
    recovery: Recovery | None = None
    """The recovery that is under way."""
    reached: dict[RankRef, int] = {}
    """How far ranks had come before they were started again."""
    regaining: list[int] = []
    """The recoveries whose ranks have not come there again."""
    clock: str = ""
    """The monotonic clock of all times here."""
    last: tuple[float, float] = (0.0, 0.0)
    """When the newest event with a time was: by that clock, and by the clock on the wall."""
    finishing: str = ""
    """Why the job is to end before its last step; "" if it is not."""
    stop: StopPoint = NO_STOP
    """The newest step to which all ranks come for that, also if it is given up: ranks that have heard of it take no
    earlier one."""
    leaving: dict[str, Leave] = {}
    """The nodes that leave. Their agents end once they have no ranks any more."""
    barred: set[tuple[str, str]] = set()
    """The nodes on which no rank may be, each with a word for the reason."""
    resources: dict[str, dict[str, float]] = {}
    """What roles have per rank that failover levels have given more than they asked for."""
    layout: Layout = Layout()
    """The present numbers of ranks."""
    layouts: int = 0
    """The newest number of a layout, or of a request for one. The next one has the next number."""
    cuts: Cuts = ((0, 1),)
    """The steps at which lines of metrics end."""
    plan: PlacementPlan | None = None
    """Where ranks were placed last; None: as the job began."""
    slices: dict[str, Any] = {}
    """The slices of extensions, by key. The head of a journal may have some of extensions that are not here now."""

    def __post_init__(self) -> None:
        """Give the slices in a decoded head their types."""
        for key in self.slices.keys() & SLICES.keys():
            self.slices[key] = msgspec.convert(self.slices[key], SLICES[key])

    def slice(self, kind: type[S]) -> S:
        """The part of the state that an extension owns."""
        found: S | None = self.slices.get(kind.key)
        if found is None:
            found = self.slices[kind.key] = kind()
        return found


class JobState(KeptJob):
    """A job as its journal tells it, and what its agents have reported to this master."""

    agents: dict[str, AgentRecord]
    ranks: dict[RankRef, RankRecord]

    @classmethod
    def of(cls, outline: MasterConfig) -> JobState:
        """A job of which nothing has happened."""
        return cls(
            agents={place.agent: AgentRecord(place) for place in outline.places},
            ranks={
                launch.ref: RankRecord(launch, agent, finished=launch.resume, durable=launch.resume)
                for agent, launches in outline.launches.items()
                for launch in launches
            },
            steps=outline.steps,
            snapshots=outline.snapshots.enabled,
            committed=outline.origin_step,
            persisted=outline.origin_step,
            origin=Origin(outline.origin, outline.origin_step),
            owned=outline.owner_lease_s is not None,
            cuts=((outline.origin_step + 1, outline.metrics_every or 1),),
        )

    @property
    def last_step(self) -> int:
        """The step with which a job ends that is to finish, once that is decided; else -1."""
        return self.stop.step if self.stop.then == "end" else -1

    @property
    def kept(self) -> KeptJob:
        """The state without what agents have reported. Both share the objects that can change."""
        told = msgspec.convert(self, KeptJob, from_attributes=True)
        told.slices = {key: each for key, each in self.slices.items() if each != type(each)()}
        return told

    def become(self, other: JobState) -> None:
        """Take over all of `other`."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    @property
    def end(self) -> int:
        """The last step, as far as it is known."""
        return self.last_step if self.last_step >= 0 else self.steps - 1

    @property
    def patient(self) -> bool:
        """Whether the job ended by itself, and nobody has asked for the end of its processes since."""
        return self.status == "done" and not self.message

    @property
    def pause(self) -> int:
        """The step to which all ranks come, and where they wait; -1 for none."""
        return self.stop.step if self.stop.then in ("relayout", "move") else -1

    @property
    def busy(self) -> bool:
        """Whether something has failed and has not been brought back yet."""
        return self.recovery is not None or bool(self.open)

    @property
    def seeks_origin(self) -> bool:
        """Whether it is being looked for where the job goes back to: no other checkpoint may become whole meanwhile."""
        return self.recovery is not None and self.recovery.phase == "origin"

    @property
    def last_failures(self) -> list[Failure]:
        """The failures that the last decision was about: of a failed job, why it failed."""
        return self.latest or self.failures

    def away(self, nodes: Iterable[str] = ()) -> tuple[str, ...]:
        """The nodes on which no rank may be: those that are lost, those that are barred, and `nodes`."""
        lost = {agent.place.node for agent in self.agents.values() if agent.node_lost}
        return tuple(sorted(lost | {node for node, _ in self.barred} | set(nodes)))

    def leaves(self, node: str, leave: Leave) -> None:
        """The node leaves."""
        self.leaving[node] = leave
        self._agents_leave()

    def stays(self, node: str) -> None:
        """The node does not leave any more."""
        self.leaving.pop(node, None)
        self._agents_leave()

    def _agents_leave(self) -> None:
        for record in self.agents.values():
            record.leaving = record.place.node in self.leaving

    @property
    def sizes(self) -> dict[str, int]:
        """How many ranks each role has."""
        return {role: record.launch.world_size for (role, _), record in self.ranks.items()}

    @property
    def homes(self) -> Iterable[tuple[str, str]]:
        """Role and agent of each rank."""
        return ((role, record.agent) for (role, _), record in self.ranks.items())

    def on(self, agent: str) -> list[RankRef]:
        """The ranks of an agent."""
        return [key for key, record in self.ranks.items() if record.agent == agent]

    def are(self, keys: Iterable[RankRef], *states: RankState) -> bool:
        """Whether all of these ranks are in one of `states`."""
        return all(self.ranks[key].state in states for key in keys)

    def refuse(self, agent: str, incarnation: int, count: int) -> None:
        """So many connections an incarnation of an agent has refused so far."""
        self.refused[agent, incarnation] = count
        for key in [key for key in self.refused if key[0] == agent and 0 <= key[1] < incarnation]:
            self.refused[agent, -1] = self.refused.get((agent, -1), 0) + self.refused.pop(key)

    def commit(self, step: int) -> None:
        """`step` is committed. How far that is is no transition, so it may be told once, at the end."""
        self.committed = step
        for record in self.ranks.values():
            record.durable, record.finished = max(record.durable, step), max(record.finished, step)


def place(state: JobState, at: AgentPlace) -> None:
    """An agent has this place: one that is there, or a new one."""
    state.agents.setdefault(at.agent, AgentRecord(at)).place = at
