"""Failures as data: who died, where and how; what the diagnosis says; what a failover level proposes.

In this version every failure ends the job; the ladder that climbs these records comes with the failover levels.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Failure", "JobView", "RankView", "RecoveryPlan", "Verdict", "describe"]

Cause = Literal["exception", "exit", "signal", "agent_lost", "node_lost", "hang", "start"]


class Failure(msgspec.Struct, frozen=True):
    """One thing that went wrong. `rank` is -1 where the whole agent or node is meant; `step` -1 before the first.

    `traceback` holds the user's frames only. `signal` and `exit_code` are those of the process, if it ended.
    """

    cause: Cause
    role: str = ""
    rank: int = -1
    node: str = ""
    operator: str = ""
    step: int = -1
    message: str = ""
    traceback: str = ""
    exit_code: int | None = None
    signal: int | None = None
    generation: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What a diagnosis makes of a failure: `kind` chooses the rung of the ladder to start at."""

    kind: Literal["software", "hardware", "user", "unknown"]
    reason: str


class RankView(msgspec.Struct, frozen=True):
    """A rank as a failover level sees it."""

    role: str
    rank: int
    node: str
    state: str
    finished: int
    generation: int


class JobView(msgspec.Struct, frozen=True):
    """The job as a failover level sees it: positions, and which roles are collective."""

    name: str
    epoch: int
    committed: int
    ranks: tuple[RankView, ...]
    collective: tuple[str, ...]


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What a level proposes: the ranks to start again, and the step whose snapshots they restore."""

    level: str
    restart: tuple[tuple[str, int], ...]
    from_step: int
    reason: str = ""


def describe(failure: Failure) -> str:
    """The failure in one line: who died, where, and how."""
    who = f"role {failure.role}, rank {failure.rank}" if failure.role else f"agent on node {failure.node}"
    at = []
    if failure.operator:
        at.append(f"in operator {failure.operator}")
    if failure.step >= 0:
        at.append(f"at step {failure.step}")
    place = f"{who} ({' '.join(at)})" if at else who
    return f"{place}: {failure.message}"
