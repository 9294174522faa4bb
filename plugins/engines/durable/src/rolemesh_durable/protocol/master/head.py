"""What stands for the older part of a journal: everything that replaying it would have led to, as plain data.

Neither options nor variables of ranks are in it: they may hold secrets, and are never journalled.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rolemesh.api.failures import Attempt, Failure
from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol.fitness import Measurements
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.master import state as st
from rolemesh_durable.protocol.master.transitions import Status, StopPoint
from rolemesh_durable.protocol.rank_key import RankKey

__all__ = ["Head", "KeptRank"]


class KeptRank(msgspec.Struct, frozen=True):
    """A `RankRecord` without what its agent reports, and of its launch what changes from start to start."""

    role: str
    rank: int
    agent: str
    state: st.RankState
    pid: int
    finished: int
    durable: int
    sha256: str
    verdict: str
    generation: int
    resume: int
    restore: Literal["none", "memory", "disk"]
    replica: str
    origin: str
    origin_step: int
    local_rank: int
    local_world_size: int
    gpus: tuple[int, ...]
    cpus: float
    memory_gb: float
    turns: tuple[tuple[str, int], ...]
    world_size: int
    collective: bool
    layout: Layout

    @classmethod
    def of(cls, rank: st.RankRecord) -> KeptRank:
        """What is kept of `rank`."""
        own = {name: getattr(rank, name) for name in _OF_RECORD}
        return cls(
            role=rank.launch.role, rank=rank.launch.rank, **own, **{n: getattr(rank.launch, n) for n in _OF_LAUNCH}
        )

    def onto(self, rank: st.RankRecord) -> None:
        """Make the rank of a fresh machine what it was."""
        for name in _OF_RECORD:
            setattr(rank, name, getattr(self, name))
        rank.launch = msgspec.structs.replace(rank.launch, **{name: getattr(self, name) for name in _OF_LAUNCH})


_OF_RECORD = ("agent", "state", "pid", "finished", "durable", "sha256", "verdict")
_OF_LAUNCH = tuple(name for name in KeptRank.__struct_fields__ if name not in ("role", "rank", *_OF_RECORD))


class Head(msgspec.Struct, frozen=True):
    """A `JobState` without what agents report; see there."""

    phase: st.Phase
    status: Status
    message: str
    grace_s: float
    owned: bool
    never_started: bool
    committed: int
    persisted: int
    timeline: int
    origin: st.Origin
    failures: list[Failure]
    open: list[Failure]
    failed_at: list[float]
    latest: list[Failure]
    attempts: list[Attempt]
    recoveries: int
    recovery: st.Recovery | None
    regaining: list[int]
    clock: str
    last: tuple[float, float]
    asked: st.Asked
    stop: StopPoint
    checked: dict[str, Measurements]
    unfit: set[str]
    resources: dict[str, dict[str, float]]
    layout: Layout
    plan: PlacementPlan | None
    agents: list[st.KeptAgent]
    ranks: list[KeptRank]
    refused: list[tuple[tuple[str, int], int]]
    reached: list[tuple[RankKey, int]]
    allowed: list[tuple[tuple[str, str], st.Allowance]]

    @classmethod
    def of(cls, state: st.JobState) -> Head:
        """What is kept of `state`."""
        kept: dict[str, Any] = {name: getattr(state, name) for name in _AS_IT_IS}
        kept |= {name: list(getattr(state, name).items()) for name in _BY_KEY}
        kept["agents"] = [msgspec.convert(agent, st.KeptAgent, from_attributes=True) for agent in state.agents.values()]
        kept["ranks"] = [KeptRank.of(rank) for rank in state.ranks.values()]
        return cls(**kept)

    def onto(self, state: st.JobState) -> None:
        """Make a job of which nothing has happened what it was. What can change is shared, not copied."""
        for name in _AS_IT_IS:
            setattr(state, name, getattr(self, name))
        for name in _BY_KEY:
            setattr(state, name, dict(getattr(self, name)))
        state.agents |= {agent.place.agent: st.AgentRecord(**msgspec.structs.asdict(agent)) for agent in self.agents}
        first, state.ranks = state.ranks, {}
        for rank in self.ranks:
            key = rank.role, rank.rank
            known = first.get(key)
            if known is None:  # the job has been resized since
                launch = msgspec.structs.replace(first[rank.role, 0].launch, rank=rank.rank)
                known = st.RankRecord(launch, rank.agent)
            state.ranks[key] = known
            rank.onto(known)


_BY_KEY = ("refused", "reached", "allowed")
_AS_IT_IS = tuple(name for name in Head.__struct_fields__ if name not in ("agents", "ranks", *_BY_KEY))
