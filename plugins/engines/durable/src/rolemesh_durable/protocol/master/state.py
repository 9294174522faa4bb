"""The state of a job as its journal records it: `apply` computes it from transitions, and nothing else changes it.

Only the ranks' progress (`finished`, `durable`, `JobState.committed`) comes from elsewhere: agents report it to every
new master again.
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
from rolemesh_durable.protocol.master.ladder import Tried
from rolemesh_durable.protocol.master.slices import SLICES, Slice
from rolemesh_durable.protocol.master.transitions import NO_STOP, Status, StopPoint
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.metrics.line_cuts import Cuts

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
"""The stage of a rank's present generation, as the master has decided it. The agent's view is `messages.RankLife`.

- starting: the master sends its launch to its agent until a report has this generation.
- up: its process has opened its inbox, so the master sends its address to its neighbours.
- ready: its workload is set up and restored. Other ranks of the job, or of its recovery, are not ready yet.
- running: it takes its steps.
- done: it has taken the job's last step. It waits until all ranks have.
- failed: it, or its agent, has reported a failure. A recovery answers the failure and halts the rank.
- halting: a recovery or a new layout starts it again. The master waits until its agent reports it as gone.
"""

S = TypeVar("S", bound=Slice)

MOST_FAILURES = 256
"""Maximum number of failures that a job remembers."""
MOST_ATTEMPTS = 2048
"""Maximum number of recoveries that a job remembers."""


class Origin(msgspec.Struct, frozen=True):
    """The persisted snapshot that this timeline of the job began with; step -1 if there is none."""

    folder: str = ""
    step: int = -1


class KeptAgent(msgspec.Struct):
    """An agent as the journal records it."""

    place: AgentPlace
    """The place where the agent runs."""
    state: AgentState = "wanted"
    """The stage of the agent's life."""
    incarnation: int = 0
    """Number of its latest start."""
    pid: int = 0
    """Process ID of its latest incarnation; 0 before its first report."""
    host: str = ""
    """Host name that it reported."""
    node_lost: bool = False
    """True if its node is lost."""
    leaving: bool = False
    """True if its node leaves: the agent ends once it has no ranks."""
    orphans: bool = False
    """True if the agent is dead and its ranks may live. Its next incarnation reports which do; see `adoption`."""
    deaths: int = 0
    """Number of its deaths in a row since step `died_at` was committed."""
    died_at: int = -1
    """The step that was committed when the agent first died in this row; -1 if none was."""


class AgentRecord(KeptAgent):
    """An agent, with what it has reported to this master."""

    heard: float = 0.0
    """When its newest report came."""
    orphaned_at: float = 0.0
    """When its ranks lost it, as far as this master knows."""
    seq: int = -1
    """Sequence number of its newest report; -1 before the first."""
    report: m.Report | None = None
    """Its newest report."""


class KeptRank(msgspec.Struct):
    """A rank as the journal records it."""

    launch: m.RankLaunch
    """The configuration of its latest start."""
    agent: str
    """Name of the agent that runs it."""
    state: RankState = "starting"
    """The stage of the rank's life."""
    pid: int = 0
    """Process ID; 0 before the process runs."""
    finished: int = -1
    """The newest step that it has finished; -1 before the first."""
    durable: int = -1
    """The newest step that it could be restored to; -1 before the first."""
    sha256: str = ""
    """Hash of its final state; "" until it is done, or if it is stateless."""
    verdict: str = ""
    """Why its workload counts the job as failed; "" if it does not."""
    calls: int = 0
    """The number of calls that it has begun to run in all its lives, as far as it has been reported."""

    @property
    def alive(self) -> bool:
        """True if the rank takes part: it is up, and has neither failed nor been halted."""
        return self.state in ("up", "ready", "running", "done")


class RankRecord(KeptRank):
    """A rank, with what its agent has reported about it."""

    report: m.RankReport | None = None
    """The newest report of the generation in `launch`."""


class Recovery(msgspec.Struct):
    """A recovery that is under way. A new master begins it again with the phase "halting"."""

    number: int
    """Number of the recovery, counted over the whole job."""
    plan: RecoveryPlan
    """The plan that this recovery carries out."""
    failures: list[Failure]
    """The failures that the plan answers."""
    begun: float
    """When the recovery began."""
    attempt: int
    """Number of this attempt among those in a row after which the ranks made no progress."""
    tried: tuple[Tried, ...] = ()
    """The plan's answer to each of `failures`."""
    phase: Literal["halting", "origin", "placing", "agents", "launching"] = "halting"
    """The stage of the recovery.

    - halting: it kills the rest of the ranks and waits for the plan's delay.
    - origin: it looks for the newest intact checkpoint (only if the job goes back to disk).
    - placing: it looks for other nodes (only if the plan avoids nodes).
    - agents: it starts lost agents again.
    - launching: it starts the ranks in a new generation. The recovery is over when all of them are ready.
    """
    since: float = 0.0
    """When this phase began."""
    asked: float | None = None
    """When the master requested places; None if it has not."""
    waiting: str = ""
    """The reason for a wait, in words; "" if it does not wait."""

    @property
    def restart(self) -> tuple[RankRef, ...]:
        """The ranks that this recovery starts again."""
        return self.plan.restart

    @property
    def not_before(self) -> float:
        """The earliest time at which its ranks may start."""
        return self.begun + self.plan.delay_s


class Leave(msgspec.Struct, frozen=True):
    """A node leaves. The notice came at time `heard` and gives `notice_s` seconds; 0 if the time is unknown."""

    heard: float
    notice_s: float = 0.0

    def left_s(self, now: float, share: float = 1.0) -> float:
        """Return the seconds until this share of the notice is over; infinity if the time is unknown."""
        return self.heard + share * self.notice_s - now if self.notice_s else math.inf


class KeptJob(msgspec.Struct):
    """A job as its journal records it. Encoded, it replaces all events so far.

    It holds no secret: options and variables of roles are in `JobConfig`.
    """

    agents: Mapping[str, KeptAgent]
    """The agents, by name."""
    ranks: Mapping[RankRef, KeptRank]
    """The ranks of the present layout."""
    steps: int
    """The number of steps that the job file asks for."""
    snapshots: bool
    """True if ranks take snapshots while the job runs."""
    committed: int
    """The newest step to which all ranks can be restored."""
    persisted: int
    """The newest step whose checkpoint on disk is complete."""
    origin: Origin
    """The persisted snapshot that the present timeline began with."""
    owned: bool
    """True if the job ends with its driver."""
    phase: Phase = "new"
    """The stage of the job's life."""
    status: Status = "done"
    """How the job ends; meaningful from the phase "stopping" on."""
    message: str = ""
    """Why the job ends."""
    grace_s: float = 0.0
    """Seconds that ranks have to end."""
    never_started: bool = True
    """True until an agent has reported for the first time."""
    timeline: int = 0
    """Number of times that the whole job has gone back to a persisted snapshot."""
    refused: dict[tuple[str, int], int] = {}
    """Number of connections that agents have refused, by agent and incarnation (-1: all earlier incarnations)."""
    failures: list[Failure] = []
    """The failures that plans have answered, oldest first."""
    open: list[Failure] = []
    """The failures that no plan has answered yet."""
    failed_at: list[float] = []
    """The times of `failures`, followed by those of `open`."""
    latest: list[Failure] = []
    """The failures that the latest decision was about."""
    attempts: list[Attempt] = []
    """The recoveries that were charged to failover levels."""
    recoveries: int = 0
    """Number of recoveries so far."""
    recovery: Recovery | None = None
    """The recovery that is under way; None if there is none."""
    reached: dict[RankRef, int] = {}
    """The newest step that each rank had finished before it was started again."""
    regaining: list[int] = []
    """Numbers of the recoveries whose ranks have not reached those steps again."""
    clock: str = ""
    """Name of the monotonic clock of all times in this state."""
    last: tuple[float, float] = (0.0, 0.0)
    """The time of the newest event that has one: by that clock, and by the wall clock."""
    finishing: str = ""
    """Why the job is to end before its last step; "" if it is not."""
    stop: StopPoint = NO_STOP
    """The newest stop point, even if it is given up: ranks that know it accept no earlier one."""
    leaving: dict[str, Leave] = {}
    """The nodes that leave, by name. Their agents end once they have no ranks."""
    barred: set[tuple[str, str]] = set()
    """The nodes on which no rank may run, each with a label for the reason."""
    resources: dict[str, dict[str, float]] = {}
    """Resources per rank of the roles that failover levels have given more than the job file asks for."""
    layout: Layout = Layout()
    """The present number of ranks of each role."""
    layouts: int = 0
    """The newest number of a layout or of a request for one. The next one gets the number after it."""
    cuts: Cuts = ((0, 1),)
    """The steps at which lines of metrics end."""
    plan: PlacementPlan | None = None
    """The latest placement of the ranks; None if it is the job's first one."""
    slices: dict[str, Any] = {}
    """The state of extensions, by key. A journal may hold slices of extensions that this process has not loaded."""

    def __post_init__(self) -> None:
        """Convert the slices of a decoded journal to their types."""
        for key in self.slices.keys() & SLICES.keys():
            self.slices[key] = msgspec.convert(self.slices[key], SLICES[key])

    def slice(self, kind: type[S]) -> S:
        """Return the part of the state that an extension owns; the extension's defaults if there is none yet."""
        found: S = self.slices.setdefault(kind.key, kind())
        return found


class JobState(KeptJob):
    """A job as its journal records it, with what its agents have reported to this master."""

    agents: dict[str, AgentRecord]
    ranks: dict[RankRef, RankRecord]
    here: dict[str, list[RankRecord]] = {}
    """The ranks of each agent that has some, in the job's order; an index of `ranks`.

    `apply` makes a new index when ranks get new places or new launches. So a reader that keeps the index compares it by
    identity to learn that no rank has moved.
    """

    def __post_init__(self) -> None:
        """Make the index."""
        super().__post_init__()
        self.index()

    def index(self) -> None:
        """Make a new index of the ranks by agent."""
        here: dict[str, list[RankRecord]] = {}
        for record in self.ranks.values():
            here.setdefault(record.agent, []).append(record)
        self.here = here

    @classmethod
    def of(cls, config: MasterConfig) -> JobState:
        """Return the state of a job before its first event."""
        return cls(
            agents={place.agent: AgentRecord(place) for place in config.places},
            ranks={
                launch.ref: RankRecord(launch, agent, finished=launch.resume, durable=launch.resume)
                for agent, launches in config.launches.items()
                for launch in launches
            },
            steps=config.job.steps,
            snapshots=config.job.snapshots.enabled,
            committed=config.origin_step,
            persisted=config.origin_step,
            origin=Origin(config.origin, config.origin_step),
            owned=config.driver is not None,
            cuts=((config.origin_step + 1, config.metrics_every or 1),),
        )

    @property
    def last_step(self) -> int:
        """The step after which a finishing job ends; -1 until the master has decided it."""
        return self.stop.step if self.stop.then == "end" else -1

    @property
    def kept(self) -> KeptJob:
        """The state without the agents' reports. Both share the objects that can change."""
        told = msgspec.convert(self, KeptJob, from_attributes=True)
        told.slices = {key: each for key, each in self.slices.items() if each != type(each)()}
        return told

    def become(self, other: JobState) -> None:
        """Replace this state by `other`."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    @property
    def end(self) -> int:
        """The last step, as far as the master knows it."""
        return self.last_step if self.last_step >= 0 else self.steps - 1

    @property
    def patient(self) -> bool:
        """True if the job came to its end without a request to stop, so its processes may take their time."""
        return self.status == "done" and not self.message

    @property
    def pause(self) -> int:
        """The step after which all ranks wait; -1 for none."""
        return self.stop.step if self.stop.then in ("relayout", "move") else -1

    @property
    def busy(self) -> bool:
        """True if a failure is not recovered yet."""
        return self.recovery is not None or bool(self.open)

    @property
    def settled(self) -> bool:
        """True if every rank is in its place, and has an agent that reports what it says."""
        return not self.busy and not any(agent.orphans for agent in self.agents.values())

    @property
    def seeks_origin(self) -> bool:
        """True while the master looks for the checkpoint that the job goes back to.

        It commits no other one meanwhile.
        """
        return self.recovery is not None and self.recovery.phase == "origin"

    @property
    def last_failures(self) -> list[Failure]:
        """The failures that the latest decision was about. In a failed job they are the reason why it failed."""
        return self.latest or self.failures

    def away(self, nodes: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the nodes on which no rank may run: lost nodes, barred nodes, and `nodes`."""
        lost = {agent.place.node for agent in self.agents.values() if agent.node_lost}
        return tuple(sorted(lost | {node for node, _ in self.barred} | set(nodes)))

    def leaves(self, node: str, leave: Leave) -> None:
        """Record that the node leaves."""
        self.leaving[node] = leave
        self._agents_leave()

    def stays(self, node: str) -> None:
        """Record that the node does not leave after all."""
        self.leaving.pop(node, None)
        self._agents_leave()

    def _agents_leave(self) -> None:
        for record in self.agents.values():
            record.leaving = record.place.node in self.leaving

    @property
    def sizes(self) -> dict[str, int]:
        """Number of ranks of each role."""
        return {role: record.launch.world_size for (role, _), record in self.ranks.items()}

    @property
    def homes(self) -> Iterable[tuple[str, str]]:
        """The role and the agent of each rank."""
        return ((role, record.agent) for (role, _), record in self.ranks.items())

    def on(self, agent: str) -> list[RankRef]:
        """Return the ranks of an agent."""
        return [record.launch.ref for record in self.here.get(agent, ())]

    def are(self, keys: Iterable[RankRef], *states: RankState) -> bool:
        """Return True if all of these ranks are in one of `states`."""
        return all(self.ranks[key].state in states for key in keys)

    def refuse(self, agent: str, incarnation: int, count: int) -> None:
        """Record the number of connections that an incarnation of an agent has refused so far."""
        self.refused[agent, incarnation] = count
        for key in [key for key in self.refused if key[0] == agent and 0 <= key[1] < incarnation]:
            self.refused[agent, -1] = self.refused.get((agent, -1), 0) + self.refused.pop(key)

    def commit(self, step: int) -> None:
        """Record that `step` is committed.

        No transition carries this number, so a replay may set it once, at the end.
        """
        self.committed = step
        for record in self.ranks.values():
            record.durable, record.finished = max(record.durable, step), max(record.finished, step)


def place(state: JobState, at: AgentPlace) -> None:
    """Give an agent this place; add the agent if it is new."""
    state.agents.setdefault(at.agent, AgentRecord(at)).place = at
