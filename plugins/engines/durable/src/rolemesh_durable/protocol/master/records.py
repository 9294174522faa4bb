"""What the master knows of agents, ranks and the recovery that is under way."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.cluster import AgentPlace
from rolemesh.api.failures import Failure, RecoveryPlan
from rolemesh_durable.protocol import messages as m

__all__ = ["AgentRecord", "RankKey", "RankRecord", "Recovery"]

RankKey: TypeAlias = tuple[str, int]

AgentState: TypeAlias = Literal["wanted", "starting", "up", "stopped", "lost"]
RankState: TypeAlias = Literal["starting", "up", "ready", "running", "done", "failed", "halting"]


class AgentRecord(msgspec.Struct):
    """An agent: `incarnation` is the number of its latest start, `heard` when it last said something.

    `leaving`: it was told to end, and has ranks until they are elsewhere, or its next incarnation has them.
    """

    place: AgentPlace
    state: AgentState = "wanted"
    incarnation: int = 0
    pid: int = 0
    host: str = ""
    node_lost: bool = False
    leaving: bool = False
    heard: float = 0.0
    seq: int = -1
    report: m.Report | None = None


class RankRecord(msgspec.Struct):
    """A rank: `launch` is its latest start, `report` the newest of that generation."""

    launch: m.RankLaunch
    agent: str
    state: RankState = "starting"
    report: m.RankReport | None = None
    pid: int = 0
    finished: int = -1
    safe: int = -1
    sha256: str = ""

    @property
    def alive(self) -> bool:
        """Whether it takes part: up, and neither failed nor being halted."""
        return self.state in ("up", "ready", "running", "done")


class Recovery(msgspec.Struct):
    """A recovery that is under way.

    halting: what is left of the ranks is killed, and the plan's delay waited for → origin (only from disk: the newest
    set that is intact) → placing (only where nodes are to be avoided) → agents: lost ones are started again →
    launching: the ranks start, in a new generation → gone, when all of them are ready. Nothing starts before
    `not_before`; this is number `attempt` of those in a row that have not got the ranks on.
    """

    number: int
    plan: RecoveryPlan
    failures: list[Failure]
    begun: float
    phase: Literal["halting", "origin", "placing", "agents", "launching"] = "halting"
    since: float = 0.0
    asked: float = float("-inf")
    waiting: str = ""
    not_before: float = 0.0
    attempt: int = 1

    @property
    def restart(self) -> tuple[RankKey, ...]:
        """The ranks that are started again."""
        return self.plan.restart
