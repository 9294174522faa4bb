"""What stands for the older part of a journal: everything that replaying it would have led to, as plain data.

Neither options nor variables of ranks are in it: they may hold secrets, and are never journalled.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rolemesh.api.cluster import AgentPlace
from rolemesh.api.failures import Attempt, Failure, RecoveryPlan
from rolemesh_durable.protocol.master.events import Status
from rolemesh_durable.protocol.master.hangs import Allowance
from rolemesh_durable.protocol.master.records import AgentRecord, AgentState, RankRecord, RankState
from rolemesh_durable.protocol.master.resume import Origin

__all__ = ["Checkpoint", "KeptAgent", "KeptAttempt", "KeptRank", "Moment", "Unfinished"]


class KeptAgent(msgspec.Struct, frozen=True):
    """An `AgentRecord` without what its agent reports."""

    place: AgentPlace
    state: AgentState
    incarnation: int
    pid: int
    host: str
    node_lost: bool
    leaving: bool = False

    @classmethod
    def of(cls, agent: AgentRecord) -> KeptAgent:
        """What is kept of `agent`."""
        return cls(agent.place, agent.state, agent.incarnation, agent.pid, agent.host, agent.node_lost, agent.leaving)

    def record(self) -> AgentRecord:
        """The agent again."""
        return AgentRecord(self.place, self.state, self.incarnation, self.pid, self.host, self.node_lost, self.leaving)


class KeptRank(msgspec.Struct, frozen=True):
    """A `RankRecord` without what its agent reports, and of its launch what changes from start to start."""

    role: str
    rank: int
    agent: str
    state: RankState
    pid: int
    finished: int
    safe: int
    sha256: str
    generation: int
    resume: int
    restore: Literal["none", "memory", "disk"]
    replica: str
    origin: str
    origin_step: int
    local_rank: int
    local_world_size: int
    gpus: tuple[int, ...]
    turns: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, rank: RankRecord) -> KeptRank:
        """What is kept of `rank`."""
        own = {name: getattr(rank, name) for name in _OF_RECORD}
        return cls(
            role=rank.launch.role, rank=rank.launch.rank, **own, **{n: getattr(rank.launch, n) for n in _OF_LAUNCH}
        )

    def onto(self, rank: RankRecord) -> None:
        """Make the rank of a fresh machine what it was."""
        for name in _OF_RECORD:
            setattr(rank, name, getattr(self, name))
        rank.launch = msgspec.structs.replace(rank.launch, **{name: getattr(self, name) for name in _OF_LAUNCH})


_OF_RECORD = ("agent", "state", "pid", "finished", "safe", "sha256")
_OF_LAUNCH = tuple(name for name in KeptRank.__struct_fields__ if name not in ("role", "rank", *_OF_RECORD))


class Moment(msgspec.Struct, frozen=True):
    """When something was: by the monotonic clock `clock`, and by the clock on the wall."""

    clock: str
    at: float
    wall: float

    def by(self, clock: str, now: float, wall: float) -> float:
        """When it was by another clock, where it is `now`.

        If that is another machine's, or another boot's, wall times tell how long ago it was, as well as they can; what
        seems to be still to come counts as now.
        """
        return min(self.at, now) if self.clock == clock else now - max(0.0, wall - self.wall)


class KeptAttempt(msgspec.Struct, frozen=True):
    """An attempt, and when it began and ended."""

    attempt: Attempt
    begun: Moment
    ended: Moment | None = None

    def by(self, clock: str, now: float, wall: float) -> Attempt:
        """The attempt with its times by this clock."""
        ended_at = self.ended.by(clock, now, wall) if self.ended is not None else 0.0
        return msgspec.structs.replace(self.attempt, at=self.begun.by(clock, now, wall), ended_at=ended_at)


class Unfinished(msgspec.Struct, frozen=True):
    """A recovery that was under way."""

    number: int
    plan: RecoveryPlan
    attempt: int
    begun: Moment


class Checkpoint(msgspec.Struct, frozen=True):
    """A machine as `Replay` has it. `reached` and `regaining` are the coordinator's, `allowed` is what operators may
    take; `open` are failures that no plan has taken up; `clock` is the one that the last master went by."""

    phase: Literal["new", "starting", "running", "stopping", "ended"]
    status: Status
    message: str
    grace_s: float
    owned: bool
    never_started: bool
    committed: int
    persisted: int
    timeline: int
    origin: Origin
    agents: list[KeptAgent]
    ranks: list[KeptRank]
    refused: list[tuple[str, int, int]]
    failures: list[Failure]
    attempts: list[KeptAttempt]
    clock: str
    allowed: list[tuple[str, str, Allowance]]
    count: int
    reached: list[tuple[str, int, int]]
    regaining: list[int]
    unfinished: Unfinished | None
    open: list[Failure]
