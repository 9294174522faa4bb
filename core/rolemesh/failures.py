"""Failures as data: who died, where and how; what the diagnosis says; what a failover level proposes.

In this version every failure ends the job; the ladder that climbs these records comes with the failover levels.
"""

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
    "Cause",
    "Failure",
    "JobView",
    "RankView",
    "RecoveryPlan",
    "Verdict",
    "describe",
    "describe_exit",
    "job_failed",
    "primary",
]

MAX_OTHERS = 8

Cause: TypeAlias = Literal["exception", "exit", "signal", "agent_lost", "node_lost", "hang", "start"]


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


_HINTS: dict[int, str] = {
    signals.SIGKILL: " (nobody here sent it: out of memory, or somebody else)",
    signals.SIGSEGV: " (a crash in native code, or a write into an input tensor, which is read-only: clone it)",
}


def describe_exit(
    role: str, rank: int, exit_code: int | None, signal: int | None, error: str = "", generation: int = 0
) -> Failure:
    """The failure of a process that ended without a report of its own; `error` if it never started."""
    if error:
        return Failure("start", role, rank, message=error, generation=generation)
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


def primary(failures: Sequence[Failure]) -> Failure:
    """The failure that the others are echoes of: a lost node or agent, then a death, then a user's exception.

    A collective's survivor raises a connection error within milliseconds of its peer's death, often before the death
    itself is seen, so the order of arrival says little.
    """

    def weight(failure: Failure) -> int:
        if failure.cause in ("node_lost", "agent_lost"):
            return 0
        if failure.cause in ("signal", "start"):
            return 1
        text = f"{failure.message} {failure.traceback}".lower()
        if failure.cause == "exception" and not any(echo in text for echo in _ECHOES):
            return 2
        return 3 if failure.cause == "exit" else 4

    return min(failures, key=weight)
