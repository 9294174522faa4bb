"""Failures as data: who died, where and how; what the diagnosis says; what a failover level proposes."""

from __future__ import annotations

import os
import signal as signals
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from rolemesh.errors import EXIT_FAILED, JobFailedError

__all__ = [
    "Attempt",
    "Cause",
    "Failure",
    "FaultKind",
    "JobView",
    "NodeState",
    "RankView",
    "RecoveryPlan",
    "Scope",
    "Verdict",
    "describe",
    "describe_exit",
    "is_echo",
    "job_failed",
    "primary",
    "weight",
]

MAX_OTHERS = 8

Cause: TypeAlias = Literal[
    "exception", "exit", "signal", "agent_lost", "node_lost", "hang", "straggler", "start", "environment"
]
FaultKind: TypeAlias = Literal["kill", "stop", "exit", "raise", "disk", "zygote", "full", "stall", "clock"]
"""What a rehearsal may inject; `rolemesh_rehearsal.spec.Rehearsal` says what each does."""
Scope: TypeAlias = Literal["process", "node", "job"]
"""How much a failover level is prepared to move: processes where they are, ranks between nodes, the whole job."""


class Failure(msgspec.Struct, frozen=True):
    """One thing that went wrong. `rank` is -1 where the whole agent or node is meant; `step` -1 before the first.

    `traceback` holds the user's frames only; of an "environment" that could not be made, what pip printed last.
    `signal` and `exit_code` are those of the process, if it ended.
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
    """What a diagnosis makes of a failure: `kind` chooses the level of the ladder to start at.

    software: the process is at fault, start at the first level. hardware: the node is, start at the first level whose
    scope is at least "node". user: the job's own code is. unknown: as software. With `fatal` nothing is tried: the job
    fails at once, and `reason` says why.
    """

    kind: Literal["software", "hardware", "user", "unknown"]
    reason: str
    fatal: bool = False


class RankView(msgspec.Struct, frozen=True):
    """A rank as a failover level sees it. `finished` is its last step, `durable` the newest it can be restored to."""

    role: str
    rank: int
    node: str
    state: str
    finished: int
    generation: int
    durable: int = -1


class NodeState(msgspec.Struct, frozen=True):
    """A node that holds, or held, ranks of the job."""

    node: str
    agent: str
    alive: bool


class Attempt(msgspec.Struct, frozen=True):
    """A recovery of this job: which level, for which failure, what it restarted, and how it went.

    `at` is in seconds of the same clock as `JobView.now`. `outcome` is "" while it is under way. `reached` has role,
    rank and the furthest step that each of them had finished before; `ended_at` is when all were ready again, or it was
    given up.
    """

    level: str
    at: float
    restart: tuple[tuple[str, int], ...]
    reason: str
    outcome: Literal["", "recovered", "failed"] = ""
    reached: tuple[tuple[str, int, int], ...] = ()
    ended_at: float = 0.0


class JobView(msgspec.Struct, frozen=True):
    """The job as a failover level sees it.

    `collective` and `stateful` are names of roles: of those whose ranks live and die together, and of those that give
    snapshots. `persisted` is the step of the newest complete snapshot on disk, -1 if there is none. `failures` are all
    earlier ones, `attempts` all recoveries so far, the latest last. `now` is in seconds of any monotonic clock.
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

    def group(self, role: str, rank: int) -> tuple[tuple[str, int], ...]:
        """The ranks that must be restarted with this one: itself, or all of a collective role."""
        if role not in self.collective:
            return ((role, rank),)
        return tuple((r.role, r.rank) for r in self.ranks if r.role == role)

    def lost_with(self, failure: Failure) -> tuple[tuple[str, int], ...]:
        """The ranks that this failure takes down, groups included: of a rank, or of a whole agent or node.

        None for a rank or a node that the job does not have.
        """
        if failure.rank >= 0:
            known = any((r.role, r.rank) == (failure.role, failure.rank) for r in self.ranks)
            return self.group(failure.role, failure.rank) if known else ()
        found = dict.fromkeys(mate for r in self.ranks if r.node == failure.node for mate in self.group(r.role, r.rank))
        return tuple(found)


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What a level proposes. The coordinator completes collective groups, executes, and escalates where it fails.

    `restart` are the ranks to start again. `source` says from where: "memory" is the newest snapshot that is in some
    node's memory (its own, or a replica), "disk" the newest persisted one, which means every rank. Ranks on the nodes
    in `avoid` get new places; `wait_s` is how long the job may wait for one. `delay_s` is how long to wait, with the
    ranks down, before they start: at least; attempts that follow each other in vain are delayed anyway.
    """

    level: str
    restart: tuple[tuple[str, int], ...]
    source: Literal["memory", "disk"] = "memory"
    avoid: tuple[str, ...] = ()
    wait_s: float = 0.0
    reason: str = ""
    delay_s: float = 0.0


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


_HINTS: dict[int, str] = {
    signals.SIGKILL: " (nobody here sent it: out of memory, or somebody else)",
    signals.SIGSEGV: " (a crash in native code, or a write into an input tensor, which is read-only: clone it)",
}


def describe_exit(
    role: str,
    rank: int,
    exit_code: int | None,
    signal: int | None,
    error: str = "",
    generation: int = 0,
    cause: Literal["start", "environment"] = "start",
) -> Failure:
    """The failure of a process that ended without a report of its own; `error` if it never started, for `cause`."""
    if error and cause == "environment":
        message, _, printed = error.partition("\n")
        return Failure(cause, role, rank, message=message, traceback=printed, generation=generation)
    if error:
        return Failure(cause, role, rank, message=error, generation=generation)
    if signal is not None:
        try:
            name = signals.Signals(signal).name
        except ValueError:
            name = f"signal {signal}"
        message = f"its process was killed by {name}{_HINTS.get(signal, '')}"
        return Failure("signal", role, rank, message=message, signal=signal, generation=generation)
    message = f"its process ended with exit code {exit_code} before its last step"
    return Failure("exit", role, rank, message=message, exit_code=exit_code, generation=generation)


def job_failed(result: Mapping[str, Any]) -> JobFailedError:
    """What a failed job's ``result.json`` has to say: who, how, the user's traceback, and where to read on."""
    failure = msgspec.convert(result["failure"], Failure) if result.get("failure") else None
    said = describe(failure) if failure else str(result.get("message"))
    what = said
    if failure is not None and failure.traceback:
        what += "\n\n" + textwrap.indent(failure.traceback.rstrip(), "  ") + "\n"
    for other in [text for text in result.get("failures", ()) if text != said][:MAX_OTHERS]:
        what += f"\n  also: {other}"
    logs = Path(os.path.relpath(str(result.get("run_dir", "."))), "logs")
    log = logs / f"{failure.role}-{failure.rank}.log" if failure is not None and failure.rank >= 0 else logs
    error = JobFailedError(what, remedy=f"what it printed is in {log}" if log.exists() else None)
    error.exit_code = int(result.get("exit_code", EXIT_FAILED))
    return error


_ECHOES = ("connection reset", "connection closed", "connection refused", "broken pipe", "gloo", "nccl", "socket")


def is_echo(failure: Failure) -> bool:
    """Whether this is what a survivor says when its peer has died: a broken connection of a collective."""
    # In a traceback the indented lines quote code, which may well speak of sockets.
    raised = [line for line in failure.traceback.splitlines() if line and not line[0].isspace()]
    text = " ".join([failure.message, *raised]).lower()
    return failure.cause == "exception" and any(echo in text for echo in _ECHOES)


def weight(failure: Failure) -> int:
    """Orders failures by how likely they are the cause of the others, 0 the most.

    A lost node or agent, then a death, then an exception. A collective's survivor raises a connection error within
    milliseconds of its peer's death, often before the death itself is seen, so the order of arrival says little.
    """
    if failure.cause in ("node_lost", "agent_lost"):
        return 0
    if failure.cause in ("signal", "start", "environment", "hang"):
        return 1
    if failure.cause == "exception" and not is_echo(failure):
        return 2
    return 3 if failure.cause in ("exit", "straggler") else 4


def primary(failures: Sequence[Failure]) -> Failure:
    """The failure that the others are echoes of."""
    return min(failures, key=weight)
