"""Failures as data: the rank, place and cause; the verdict of the diagnosis; the plan of a failover
level."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh.errors import EXIT_FAILED, JobFailedError

MAX_OTHERS = 8

Cause: TypeAlias = Literal[
    "exception",
    "contract",
    "exit",
    "signal",
    "agent_lost",
    "node_lost",
    "log_lost",
    "hang",
    "straggler",
    "start",
    "environment",
    "check",
]
Scope: TypeAlias = Literal["process", "node", "job"]
"""How much a failover level may move: nothing (processes restart where they are), ranks to other
nodes, or the whole job."""


class Failure(msgspec.Struct, frozen=True):
    """A failure of a rank, an agent or a node.

    - `cause`: "contract" if an operator raised a `PluginError` of the kind "misbehaved".
    - `rank`: the failed rank, -1 if the whole agent or node failed.
    - `step`: the step of the failure, -1 before the first one.
    - `traceback`: frames of the user's code only; for an "environment" that could not be prepared,
      the last output of pip.
    - `signal`, `exit_code`: how the process ended, if it did.
    - `log_tail`: the last lines that the process printed.
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
    log_tail: str = ""

    @property
    def ref(self) -> RankRef:
        """The rank that failed."""
        return RankRef(self.role, self.rank)


class Verdict(msgspec.Struct, frozen=True):
    """The result of a diagnosis: `kind` chooses the level of the ladder to start at.

    software: the process is at fault, start at the first level. hardware: the node is at fault,
    start at the first level whose scope is at least "node". user: the job's own code is at fault.
    unknown: as software. If `fatal`, the job fails at once with `reason`.
    """

    kind: Literal["software", "hardware", "user", "unknown"]
    reason: str
    fatal: bool = False


class RankView(OfRank, frozen=True):
    """A rank as a failover level sees it. `finished` is its last finished step, `durable` the
    newest step that it can be restored to."""

    node: str
    state: str
    finished: int
    generation: int
    durable: int = -1


class NodeState(msgspec.Struct, frozen=True):
    """A node that holds or held ranks of the job."""

    node: str
    agent: str
    alive: bool


class Attempt(msgspec.Struct, frozen=True):
    """A recovery of this job: the level, the failure, the restarted ranks, and the outcome.

    - `at`: its start, in seconds of the clock of `JobView.now`.
    - `outcome`: "" while it is under way.
    - `reached`: role, rank and the furthest step that each restarted rank had finished before.
    - `ended_at`: the time at which all ranks were ready again or the attempt was given up.
    - `avoid`: nodes that the plan was to avoid.
    - `causes`: the causes of the failures since the previous recovery; empty if this level took
      over from another one whose plan had failed.
    """

    level: str
    at: float
    restart: tuple[RankRef, ...]
    reason: str
    outcome: Literal["", "recovered", "failed"] = ""
    reached: tuple[tuple[str, int, int], ...] = ()
    ended_at: float = 0.0
    avoid: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()


class JobView(msgspec.Struct, frozen=True):
    """The job as a failover level sees it.

    - `collective`: names of the roles whose ranks restart together.
    - `stateful`: names of the roles whose ranks return snapshots.
    - `persisted`: step of the newest complete checkpoint on disk, -1 if there is none.
    - `failures`, `failed_at`: all earlier failures, and their times.
    - `attempts`: all recoveries so far, the latest last.
    - `now`: the time in seconds of a monotonic clock.
    - `spares`: known nodes that are alive, hold no rank of the job, and are not banned.
    - `verdict`: the diagnosis of the present failure.
    - `ranges`: minimum and maximum number of ranks of elastic roles (``world_size: {min, max}``).
    - `resources`: the resources that a rank of each role has now, by name.
    - `most`: the resources that a rank of each role may get (``resources.most``).
    """

    name: str
    epoch: int
    committed: int
    ranks: tuple[RankView, ...]
    collective: tuple[str, ...]
    stateful: tuple[str, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    persisted: int = -1
    failures: tuple[Failure, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    now: float = 0.0
    failed_at: tuple[float, ...] = ()
    spares: tuple[str, ...] = ()
    verdict: Verdict | None = None
    ranges: dict[str, tuple[int, int]] = {}
    resources: dict[str, dict[str, float]] = {}
    most: dict[str, dict[str, float]] = {}

    def group(self, role: str, rank: int) -> tuple[RankRef, ...]:
        """Return the ranks that must restart with this one: itself, or all ranks of a collective
        role."""
        if role not in self.collective:
            return (RankRef(role, rank),)
        return tuple(r.ref for r in self.ranks if r.role == role)

    def lost_with(self, failure: Failure) -> tuple[RankRef, ...]:
        """Return the ranks that the failure of a rank, an agent or a node takes down, including
        their groups.

        The result is empty if the job does not have the rank or node.
        """
        if failure.rank >= 0:
            return self.group(*failure.ref) if any(r.ref == failure.ref for r in self.ranks) else ()
        groups = {r.role for r in self.ranks if r.node == failure.node} & {*self.collective}
        return tuple(r.ref for r in self.ranks if r.node == failure.node or r.role in groups)


class RecoveryPlan(msgspec.Struct, frozen=True):
    """The proposal of a level. The coordinator adds the rest of collective groups, executes the
    plan, and asks the next level if it fails.

    `restart`: the ranks to restart.
    `source`: "memory", the newest snapshot in a node's memory (its own or a replica), or "disk",
    the newest persisted checkpoint, which restarts every rank.
    `avoid`: nodes whose ranks get new places. `wait_s`: seconds that the job may wait for a place.
    `ban`: nodes that the plan avoids, with the seconds from now for which no rank is placed there:
    no later recovery, resize or move uses them. A ban ends early if the last level of the ladder
    finds no other place.
    `delay_s`: minimum seconds before the ranks start; repeated failures add a delay of their own.
    `resize`: new numbers of ranks by role; every rank then restarts from disk.
    `resources`: new resources per rank by role, up to `JobView.most`; the ranks of these roles
    restart where a node has so much.
    `level`: the name of the level, which the engine fills in.
    """

    restart: tuple[RankRef, ...]
    source: Literal["memory", "disk"] = "memory"
    avoid: tuple[str, ...] = ()
    wait_s: float = 0.0
    reason: str = ""
    delay_s: float = 0.0
    resize: dict[str, int] = {}
    resources: dict[str, dict[str, float]] = {}
    ban: dict[str, float] = {}
    level: str = ""


class Pass(msgspec.Struct, frozen=True):
    """The decision of a level to leave a failure to the next one. The message of a failed job lists
    the reasons."""

    reason: str


def describe(failure: Failure) -> str:
    """Return the failure in one line: role, rank, place and message."""
    what = "node" if failure.cause == "check" else "agent on node"
    who = failure.ref.in_words if failure.role else f"{what} {failure.node}"
    operator = f"in operator {failure.operator}" if failure.operator else ""
    at = " ".join(filter(None, (operator, f"at step {failure.step}" if failure.step >= 0 else "")))
    return f"{who} ({at}): {failure.message}" if at else f"{who}: {failure.message}"


def job_failed(result: Mapping[str, Any]) -> JobFailedError:
    """The error for a failed job's ``result.json``: the failure, the user's traceback, and the
    files with details."""
    failure = msgspec.convert(result["failure"], Failure) if result.get("failure") else None
    told = str(result.get("message"))  # also what failover levels have said
    said = describe(failure) if failure else told
    what = told if told.startswith(said) else said
    if failure is not None and (last := failure.traceback or failure.log_tail):
        what += f"\n\n{textwrap.indent(last.rstrip(), '  ')}\n"
    for other in [text for text in result.get("failures", ()) if text != said][:MAX_OTHERS]:
        what += f"\n  also: {other}"
    log = Path(os.path.relpath(str(result.get("run_dir", "."))), "logs")
    if failure is not None and failure.rank >= 0:
        log /= f"{failure.role}-{failure.rank}.log"
    error = JobFailedError(what, remedy=f"what it printed is in {log}" if log.exists() else None)
    error.exit_code = int(result.get("exit_code", EXIT_FAILED))
    return error
