"""What a master journals: one typed statement for each thing that happens to a job.

`apply` is what each of them means for the job's state, the same where it happens and where the journal is read again.
Times (`at`) are in seconds of the monotonic clock that the latest `JobStarted` or `MasterRecovered` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.api.failures import Failure, RecoveryPlan, Verdict
from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.master.ladder import Tried
from rolemesh_durable.protocol.refs import OfStart

__all__ = ["KINDS", "OTHERS", "Move", "Started", "Status", "StopPoint", "Then", "Transition", "read"]

Status: TypeAlias = Literal["done", "failed", "interrupted"]
Then: TypeAlias = Literal["end", "relayout", "move", "go_on"]


class Transition(msgspec.Struct, frozen=True, tag_field="_", omit_defaults=True):
    """Something that has happened. Its kind in the journal is its tag."""

    @property
    def kind(self) -> str:
        """As `rolemesh.api.observer.Event` has it."""
        return str(self.__struct_config__.tag)

    @property
    def data(self) -> dict[str, Any]:
        """As `rolemesh.api.observer.Event` has it: plain values by name."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        del built["_"]
        return built


class OfAgent(Transition, frozen=True):
    """Something about one incarnation of an agent, on a node."""

    agent: str
    incarnation: int
    node: str


# ------------------------------------------------------------------------------------------------------------- the job


class JobStarted(Transition, frozen=True, tag="job_started"):
    """The first master begins; `origin` is the persisted snapshot that it begins with, if it does."""

    name: str
    steps: int | None
    agents: list[str]
    ranks: int
    at: float
    clock: str
    origin: str = ""
    origin_step: int = -1


class MasterRecovered(Transition, frozen=True, tag="master_recovered"):
    """Another master takes over."""

    epoch: int
    phase: str
    at: float
    clock: str


class JobDetached(Transition, frozen=True, tag="job_detached"):
    """Its driver leaves it to the master."""


class JobRunning(Transition, frozen=True, tag="job_running"):
    """All ranks are ready."""

    at: float


class JobFinishing(Transition, frozen=True, tag="job_finishing"):
    """The job is to end soon, in good order, for this reason."""

    reason: str
    at: float


class StopPoint(Transition, frozen=True, tag="stop_point"):
    """All ranks come to one step and wait there. No rank was allowed to go further, and none will be."""

    step: int
    """The step; -1 where the stop point before is given up."""
    then: Then
    """What happens there: the job ends, its layout changes, ranks move to other nodes, or nothing any more."""
    reason: str
    """Why, in words."""
    nodes: tuple[str, ...] = ()
    """The nodes that ranks leave, where ranks move."""

    @property
    def active(self) -> bool:
        """Whether something happens at this step."""
        return self.then != "go_on"


class LinesCut(Transition, frozen=True, tag="lines_cut"):
    """From step `step` on, a line of metrics covers `every` steps. No rank was allowed to go so far before."""

    step: int
    every: int


NO_STOP = StopPoint(-1, "go_on", "")


class JobStopping(Transition, frozen=True, tag="job_stopping"):
    """The job comes to its end, for the reason `message`."""

    status: Status
    message: str
    grace_s: float
    at: float


class JobEnded(Transition, frozen=True, tag="job_ended"):
    """No agent is left, or none is waited for any longer."""

    status: Status
    message: str
    committed: int
    note: str = ""


# -------------------------------------------------------------------------------------------------------------- agents


class AgentStarted(OfAgent, frozen=True, tag="agent_started"):
    """An incarnation of an agent is asked for."""

    resources: dict[str, float]


class AgentUp(OfAgent, frozen=True, tag="agent_up"):
    """It has reported for the first time."""

    pid: int
    host: str


class AgentLost(OfAgent, frozen=True, tag="agent_lost"):
    """It is gone, and its ranks are with it; with `node_lost` the node is, too."""

    why: str
    node_lost: bool


class AgentDied(OfAgent, frozen=True, tag="agent_died"):
    """It is gone, and its ranks may live: which of them do, its next incarnation says, which adopts them.

    It is the death number `times` in a row since step `committed` was.
    """

    why: str
    times: int
    committed: int


class NodeLost(OfAgent, frozen=True, tag="node_lost"):
    """Of an agent that is lost it is learned that its node is, too."""


class AgentLeft(OfAgent, frozen=True, tag="agent_left"):
    """An agent of a node that is drained is gone, and nothing with it."""

    why: str
    node_lost: bool


class AgentStopped(Transition, frozen=True, tag="agent_stopped"):
    """It has ended as the job ends; `why` is what the backend says, where it did not say so itself."""

    agent: str
    why: str = ""


class Environment(Transition, frozen=True, tag="environment"):
    """An agent makes the environment of a role."""

    agent: str
    node: str
    message: str


class ConnectionsRefused(OfAgent, frozen=True, tag="connections_refused"):
    """So many connections an agent and its ranks have refused; told for the first, and whenever it has doubled."""

    count: int


# --------------------------------------------------------------------------------------------------------------- ranks


class RankUp(OfStart, Transition, frozen=True, tag="rank_up"):
    """Its process runs."""

    pid: int
    node: str


class RankReady(OfStart, Transition, frozen=True, tag="rank_ready"):
    """It is set up, which took `setup_s`."""

    setup_s: float


class RankDone(OfStart, Transition, frozen=True, tag="rank_done"):
    """It has finished the last step; `sha256` is of its state, `verdict` why the job has failed all the same."""

    finished: int
    sha256: str
    verdict: str = ""


# ---------------------------------------------------------------------------------------------------------- recoveries


class FailureSeen(Transition, frozen=True, tag="failure"):
    """Something has failed, unnoticed for `silent_s`."""

    failure: Failure
    silent_s: float
    at: float


class LadderExhausted(Transition, frozen=True, tag="ladder_exhausted"):
    """No level has a plan; `trail` is what each has said. `ended_by`: the level that has ended the job, "" for none."""

    trail: list[str]
    ended_by: str = ""


class RecoveryPlanned(Transition, frozen=True, tag="recovery_planned"):
    """Recovery `number` begins.

    It takes in the ranks that an earlier recovery has not brought back, and all failures that wait for a recovery.
    `attempt` is 0 where no level is charged for it. `were` says how far its ranks had come. `tried` says what the plan
    does about each failure, those of an earlier plan first. `verdicts` are those that diagnosers gave on the causes.
    """

    number: int
    attempt: int
    plan: RecoveryPlan
    failures: list[str]
    were: tuple[tuple[str, int, int], ...]
    causes: list[str]
    trail: list[str]
    at: float
    tried: tuple[Tried, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


class SuspectsUsed(Transition, frozen=True, tag="suspects_used"):
    """There are no other places than on nodes that the plan avoids."""

    number: int
    nodes: list[str]
    missing: str


class WaitingForNodes(Transition, frozen=True, tag="waiting_for_nodes"):
    """There is no place, and one is waited for."""

    number: int
    missing: str
    wait_s: float


class SnapshotDamaged(Transition, frozen=True, tag="snapshot_damaged"):
    """A persisted snapshot cannot be gone back to."""

    message: str


class RolledBack(Transition, frozen=True, tag="rolled_back"):
    """The whole job goes back to a persisted snapshot."""

    step: int
    folder: str
    lost_steps: int
    timeline: int


class Move(OfRank, frozen=True):
    """A rank's new place: the agent that is to run it, and what depends on the place."""

    agent: str
    local_rank: int
    local_world_size: int
    gpus: tuple[int, ...] = ()
    turns: tuple[RankRef, ...] = ()

    def applied(self, launch: m.RankLaunch) -> m.RankLaunch:
        """`launch` at the new place."""
        return msgspec.structs.replace(
            launch, local_rank=self.local_rank, local_world_size=self.local_world_size, gpus=self.gpus, turns=self.turns
        )


class RanksMoved(Transition, frozen=True, tag="replanned"):
    """Ranks have new places, by `plan`; those of the roles in `resources` so much each there."""

    moves: tuple[Move, ...]
    places: tuple[AgentPlace, ...]
    plan: PlacementPlan
    resources: dict[str, dict[str, float]] = {}


class LayoutChanged(Transition, frozen=True, tag="layout_changed"):
    """Everybody is at the step: from it on the job has `layout`. The ranks of the roles that it resizes (`roles`; their
    ranks are a collective group in `groups`) have these places, by `plan`."""

    number: int
    layout: Layout
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    moves: tuple[Move, ...]
    places: tuple[AgentPlace, ...]
    plan: PlacementPlan


class Started(OfStart, frozen=True):
    """A rank that starts again: as which generation, where, after which step, and where its state is."""

    agent: str
    resume: int
    restore: Literal["none", "memory", "disk"]
    replica: str


class RecoveryLaunched(Transition, frozen=True, tag="recovery_launched"):
    """Its ranks start."""

    number: int
    ranks: list[Started]
    at: float


class RecoveryFailed(Transition, frozen=True, tag="recovery_failed"):
    """It cannot be carried out: the next level's turn."""

    number: int
    level: str
    why: str
    at: float


class Recovered(Transition, frozen=True, tag="recovered"):
    """All of its ranks are ready."""

    number: int
    level: str
    restarted: list[str]
    seconds: float
    at: float


class Regained(Transition, frozen=True, tag="regained"):
    """Its ranks are as far as they had been."""

    number: int
    at: float


# ----------------------------------------------------------------------------------------------------------- snapshots


class CheckpointPersisted(Transition, frozen=True, tag="persisted"):
    """The persisted snapshot of a step is whole."""

    step: int


class SnapshotWarning(Transition, frozen=True, tag="snapshot_warning"):
    """An agent, or with `step` the master, cannot write snapshots."""

    message: str
    agent: str = ""
    step: int = -1


class SnapshotWarningOver(Transition, frozen=True, tag="snapshot_warning_over"):
    """An agent can again."""

    agent: str


def _all(cls: type[Transition]) -> Iterator[type[Transition]]:
    subclasses = cls.__subclasses__()
    return chain.from_iterable(map(_all, subclasses)) if subclasses else iter((cls,))


KINDS: dict[str, type[Transition]] = {str(cls.__struct_config__.tag): cls for cls in _all(Transition)}
"""The kinds of events that the core of a master journals."""
OTHERS: dict[str, type[Transition]] = {}
"""The kinds of events that the extensions journal that this process has imported."""


def read(kind: str, data: dict[str, Any]) -> Transition | None:
    """What an event of a journal says; None for a kind that this version does not know."""
    cls = KINDS.get(kind) or OTHERS.get(kind)
    return msgspec.convert({**data, "_": kind}, cls) if cls is not None else None
