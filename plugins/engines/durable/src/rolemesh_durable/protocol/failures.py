"""The failure that a process's end stands for, and the faults of a rehearsal. Pure."""

from __future__ import annotations

import signal as signals
from typing import Literal, TypeAlias

from rolemesh.api.failures import Failure

__all__ = ["FaultKind", "describe_exit"]

FaultKind: TypeAlias = Literal["kill", "stop", "exit", "raise", "disk", "zygote", "full", "stall", "clock", "child"]
"""The faults that a rehearsal may inject; `rolemesh_rehearsal.spec.Rehearsal` describes each.

- kill: SIGKILL.
- stop: SIGSTOP.
- exit: the rank calls ``os._exit``.
- raise: the rank raises in its next operator.
- disk: the agent's writes of the next persisted snapshot fail as if the disk were full.
- zygote: SIGKILL of a zygote of the agent.
- full: no file of the process can grow for some seconds.
- stall: the master's next write stands still for some seconds.
- clock: the process's wall clock steps by an hour.
"""

_HINTS: dict[int, str] = {
    signals.SIGKILL: " (memory ran out, or somebody sent it)",
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
    """Return the failure of a process that ended without a report. `error` is set if it never started, for `cause`."""
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
