"""The transitions that a master journals: one typed record for each thing that happens to a job.

`apply` computes what each of them changes in the job's state, both when it happens and when a master reads the journal
again. Times (`at`) are seconds of the monotonic clock that the latest `JobStarted` or `MasterRecovered` names.
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
    """One thing that has happened. Its tag is its kind in the journal."""

    @property
    def kind(self) -> str:
        """The kind, as in `rolemesh.api.observer.Event`."""
        return str(self.__struct_config__.tag)

    @property
    def data(self) -> dict[str, Any]:
        """The fields as plain values by name, as in `rolemesh.api.observer.Event`."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        del built["_"]
        return built


class OfAgent(Transition, frozen=True):
    """A transition of one incarnation of an agent, on a node."""

    agent: str
    incarnation: int
    node: str


# ------------------------------------------------------------------------------------------------------------- the job


class JobStarted(Transition, frozen=True, tag="job_started"):
    """The first master begins. `origin` is the persisted snapshot that the job starts from; "" if there is none."""

    name: str
    steps: int | None
    agents: list[str]
    ranks: int
    at: float
    clock: str
    origin: str = ""
    origin_step: int = -1


class MasterRecovered(Transition, frozen=True, tag="master_recovered"):
    """A new master takes over."""

    epoch: int
    phase: str
    at: float
    clock: str


class JobDetached(Transition, frozen=True, tag="job_detached"):
    """The driver leaves the job to the master."""


class JobRunning(Transition, frozen=True, tag="job_running"):
    """All ranks are ready."""

    at: float


class JobFinishing(Transition, frozen=True, tag="job_finishing"):
    """The job is to finish early and in good order, for this reason."""

    reason: str
    at: float


class StopPoint(Transition, frozen=True, tag="stop_point"):
    """All ranks come to one step and wait there. No rank has been allowed past it, and none will be."""

    step: int
    """The step; -1 if the previous stop point is given up."""
    then: Then
    """The action at that step: the job ends, its layout changes, ranks move to other nodes, or ("go_on") nothing."""
    reason: str
    """The reason, in words."""
    nodes: tuple[str, ...] = ()
    """The nodes that ranks leave, if ranks move."""

    @property
    def active(self) -> bool:
        """True if something happens at this step."""
        return self.then != "go_on"


class LinesCut(Transition, frozen=True, tag="lines_cut"):
    """From `step` on, one line of metrics covers `every` steps.

    No rank has been allowed to come to that step before.
    """

    step: int
    every: int


NO_STOP = StopPoint(-1, "go_on", "")


class JobStopping(Transition, frozen=True, tag="job_stopping"):
    """The job begins to end, for the reason `message`. Ranks have `grace_s` seconds to end."""

    status: Status
    message: str
    grace_s: float
    at: float


class JobEnded(Transition, frozen=True, tag="job_ended"):
    """All agents are gone, or the master stopped waiting for them. `note` says which of them are missing."""

    status: Status
    message: str
    committed: int
    note: str = ""


# -------------------------------------------------------------------------------------------------------------- agents


class AgentStarted(OfAgent, frozen=True, tag="agent_started"):
    """The master starts an incarnation of an agent."""

    resources: dict[str, float]


class AgentUp(OfAgent, frozen=True, tag="agent_up"):
    """The agent has reported for the first time."""

    pid: int
    host: str


class AgentLost(OfAgent, frozen=True, tag="agent_lost"):
    """The agent and its ranks are gone. With `node_lost` the node is gone too."""

    why: str
    node_lost: bool


class AgentDied(OfAgent, frozen=True, tag="agent_died"):
    """The agent is gone, but its ranks may live. Its next incarnation reports which do, and adopts them.

    It has died `times` times in a row since step `committed` was committed.
    """

    why: str
    times: int
    committed: int


class NodeLost(OfAgent, frozen=True, tag="node_lost"):
    """The node of an agent that was already lost is lost too."""


class AgentLeft(OfAgent, frozen=True, tag="agent_left"):
    """The agent on a node that leaves has ended. It had no ranks."""

    why: str
    node_lost: bool


class AgentStopped(Transition, frozen=True, tag="agent_stopped"):
    """The agent has ended because the job ends.

    `why` is the backend's reason; "" if the agent reported its end itself.
    """

    agent: str
    why: str = ""


class Environment(Transition, frozen=True, tag="environment"):
    """An agent makes the environment of a role."""

    agent: str
    node: str
    message: str


class ConnectionsRefused(OfAgent, frozen=True, tag="connections_refused"):
    """An agent and its ranks have refused `count` connections. The master records the first one and each doubling."""

    count: int


# --------------------------------------------------------------------------------------------------------------- ranks


class RankUp(OfStart, Transition, frozen=True, tag="rank_up"):
    """The rank's process runs."""

    pid: int
    node: str


class RankReady(OfStart, Transition, frozen=True, tag="rank_ready"):
    """The rank has set up, which took `setup_s` seconds."""

    setup_s: float


class RankDone(OfStart, Transition, frozen=True, tag="rank_done"):
    """The rank has finished the last step.

    `sha256` is the hash of its state. `verdict` says why its workload counts the job as failed; "" if it does not.
    """

    finished: int
    sha256: str
    verdict: str = ""


# ---------------------------------------------------------------------------------------------------------- recoveries


class FailureSeen(Transition, frozen=True, tag="failure"):
    """Something has failed. The master noticed it `silent_s` seconds after the last sign of life."""

    failure: Failure
    silent_s: float
    at: float


class LadderExhausted(Transition, frozen=True, tag="ladder_exhausted"):
    """No level has a plan.

    `trail` holds each level's reason. `ended_by` is the level that ended the job; "" if none did.
    """

    trail: list[str]
    ended_by: str = ""


class RecoveryPlanned(Transition, frozen=True, tag="recovery_planned"):
    """Recovery `number` begins.

    It covers all failures that wait for a recovery, and the ranks that an unfinished recovery has not restored.
    `attempt` is 0 if the recovery is charged to no level. `were` holds the newest step that each of its ranks had
    finished. `tried` says what the plan does about each failure, those of an earlier plan first. `verdicts` are the
    diagnosers' verdicts on the causes.
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
    """The ranks go to nodes that the plan avoids: no other place is free."""

    number: int
    nodes: list[str]
    missing: str


class WaitingForNodes(Transition, frozen=True, tag="waiting_for_nodes"):
    """No place is free, so the recovery waits at most `wait_s` seconds for one."""

    number: int
    missing: str
    wait_s: float


class SnapshotDamaged(Transition, frozen=True, tag="snapshot_damaged"):
    """A persisted snapshot is damaged, so the job cannot go back to it."""

    message: str


class RolledBack(Transition, frozen=True, tag="rolled_back"):
    """The whole job goes back to a persisted snapshot.

    `calls`: the services with `repeatable=False` whose calls in the lost steps may be made again.
    """

    step: int
    folder: str
    lost_steps: int
    timeline: int
    calls: tuple[str, ...] = ()


class Move(OfRank, frozen=True):
    """The new place of a rank: the agent that runs it, and the settings that depend on the place."""

    agent: str
    local_rank: int
    local_world_size: int
    gpus: tuple[int, ...] = ()
    turns: tuple[RankRef, ...] = ()

    def applied(self, launch: m.RankLaunch) -> m.RankLaunch:
        """Return `launch` with the new place."""
        return msgspec.structs.replace(
            launch, local_rank=self.local_rank, local_world_size=self.local_world_size, gpus=self.gpus, turns=self.turns
        )


class RanksMoved(Transition, frozen=True, tag="replanned"):
    """Ranks have new places, by `plan`. `resources` holds what the ranks of some roles now get there.

    `calls`: the services with `repeatable=False` whose calls by these ranks may be made again, if their log is lost.
    """

    moves: tuple[Move, ...]
    places: tuple[AgentPlace, ...]
    plan: PlacementPlan
    resources: dict[str, dict[str, float]] = {}
    calls: tuple[str, ...] = ()


class LayoutChanged(Transition, frozen=True, tag="layout_changed"):
    """The ranks have come to the stop point and continue with `layout`.

    `roles` are the roles that change their number of ranks; those in `groups` are collective groups. `moves` and
    `places` say where their ranks run, by `plan`.
    """

    number: int
    layout: Layout
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    moves: tuple[Move, ...]
    places: tuple[AgentPlace, ...]
    plan: PlacementPlan


class Started(OfStart, frozen=True):
    """A new start of a rank: its generation, its agent, the step that it resumes after, where its state is, and how
    many calls it had begun to run."""

    agent: str
    resume: int
    restore: Literal["none", "memory", "disk"]
    replica: str
    calls: int = 0


class RecoveryLaunched(Transition, frozen=True, tag="recovery_launched"):
    """The ranks of the recovery start."""

    number: int
    ranks: list[Started]
    at: float


class RecoveryFailed(Transition, frozen=True, tag="recovery_failed"):
    """The master cannot carry out the recovery, so the next level gets its turn."""

    number: int
    level: str
    why: str
    at: float


class Recovered(Transition, frozen=True, tag="recovered"):
    """All ranks of the recovery are ready."""

    number: int
    level: str
    restarted: list[str]
    seconds: float
    at: float


class Regained(Transition, frozen=True, tag="regained"):
    """The ranks have reached the steps that they had finished before the recovery."""

    number: int
    at: float


# ----------------------------------------------------------------------------------------------------------- snapshots


class CheckpointPersisted(Transition, frozen=True, tag="persisted"):
    """The checkpoint of `step` is complete on disk."""

    step: int


class SnapshotWarning(Transition, frozen=True, tag="snapshot_warning"):
    """An agent cannot write snapshots, or has no shared memory left. With `step` the master cannot commit the
    checkpoint of that step."""

    message: str
    agent: str = ""
    step: int = -1


class SnapshotWarningOver(Transition, frozen=True, tag="snapshot_warning_over"):
    """The agent has no problem any more. `message` is what it reported last."""

    agent: str
    message: str = ""


def _all(cls: type[Transition]) -> Iterator[type[Transition]]:
    subclasses = cls.__subclasses__()
    return chain.from_iterable(map(_all, subclasses)) if subclasses else iter((cls,))


KINDS: dict[str, type[Transition]] = {str(cls.__struct_config__.tag): cls for cls in _all(Transition)}
"""The kinds of transitions of the master's core, by tag."""
OTHERS: dict[str, type[Transition]] = {}
"""The kinds of transitions of the extensions that this process has imported, by tag."""


def read(kind: str, data: dict[str, Any]) -> Transition | None:
    """Return the transition of a journal entry; None if this version does not know its kind."""
    cls = KINDS.get(kind) or OTHERS.get(kind)
    return msgspec.convert({**data, "_": kind}, cls) if cls is not None else None
