"""The diagnoser `standard`: from the facts about a failure to the level of the ladder at which it should start."""

from __future__ import annotations

import re
import signal as signals
from typing import Literal

from pydantic import BaseModel, Field

from rolemesh.api.diagnoser import Diagnoser
from rolemesh.api.failures import Cause, Failure, JobView, Verdict
from rolemesh.api.rank_ref import RankRef
from rolemesh.hookspecs import hookimpl
from rolemesh_durable.protocol.master.error_texts import Rule, known, raised_lines
from rolemesh_durable.protocol.master.primary import is_echo

__all__ = ["StandardDiagnoser", "StandardOptions"]

_SIGNALS: dict[int, str] = {
    signals.SIGKILL: "killed from outside: by the kernel because memory ran out, or by somebody",
    signals.SIGTERM: "asked to end from outside: by a batch system, or by somebody",
    signals.SIGBUS: "a crash in native code: /dev/shm is full, or a mapped file has become shorter",
    signals.SIGABRT: "native code gave up (abort): its own check failed, or the watchdog of NCCL",
}
_NOT_ITS_OWN = ("node_lost", "agent_lost", "log_lost", "check", "start", "environment")
"""Causes of failures in which a rank's process has no part."""
_ALWAYS: dict[Cause, Verdict] = {
    "node_lost": Verdict("hardware", "the node is lost, and what was in its memory"),
    "check": Verdict("hardware", "a check before the start has found the node unfit"),
    "log_lost": Verdict("software", "what it had sent is lost, and others have used some of it"),
    "hang": Verdict("software", "nothing moved, and the others waited for this rank"),
    "contract": Verdict("user", "a contract is broken, and would be again", fatal=True),
}
"""Causes whose verdict needs no further facts."""
_CRASHES = (signals.SIGSEGV, signals.SIGILL, signals.SIGFPE, signals.SIGTRAP, signals.SIGSYS)


class StandardOptions(BaseModel, extra="forbid"):
    """The limits after which a failure is fatal, and the treatment of slow ranks."""

    repeats: int | None = Field(
        default=2,
        ge=1,
        description="The same exception of user code at the same step is fatal after this many times; null: never.",
    )
    max_restarts: int | None = Field(
        default=None,
        ge=0,
        description="Restarts of a rank or group in all, over all levels and the whole job, after which its next "
        "failure is fatal; lost nodes and agents do not count. null: the levels' own budgets are the only limit.",
    )
    stragglers: Literal["report", "move"] = Field(
        default="report",
        description="report: only report a sustained straggler; move: treat it as a fault of its node.",
    )


class StandardDiagnoser(Diagnoser):
    """Judges by cause, exit code, signal, and the texts of well-known errors.

    It always has a verdict, except for a straggler that is only to be reported. So put other diagnosers before it in
    the job file's list. Only breaches of contract, exceptions of user code and failed first environments are fatal,
    because only they are sure to happen again. An exception about a lost peer or full memory depends on other events.
    """

    Options = StandardOptions
    options: StandardOptions

    @hookimpl
    def diagnose(self, failure: Failure, view: JobView) -> Verdict | None:
        """Pure; the same failure and history give the same verdict."""
        verdict, limit = self._judged(failure, view), self.options.max_restarts
        granted = failure in view.failures  # its restart did not work: the next level's turn
        if verdict is None or limit is None or granted or failure.cause in _NOT_ITS_OWN:
            return verdict
        if is_echo(failure) and len({rank.node for rank in view.ranks}) > 1:  # the loss of a node may be behind it
            return verdict
        used = _restarts(view.lost_with(failure), view)
        if used < limit:
            return verdict
        spent = f"{used} of {limit} restarts used" if limit else "no restarts are allowed (max_restarts: 0)"
        return Verdict(verdict.kind, f"{verdict.reason}; {spent}", fatal=True)

    def _judged(self, failure: Failure, view: JobView) -> Verdict | None:
        if failure.cause in _ALWAYS:
            return _ALWAYS[failure.cause]
        match failure.cause:
            case "straggler":
                slow = Verdict("hardware", "slower than the role's other ranks for long: its node is at fault")
                return slow if self.options.stragglers == "move" else None
            case "signal" | "exit":
                return _died(failure)
            case "environment":
                return _unmade(failure)
        rule = _meaning(failure)
        if rule is not None and rule.kind != "user":
            return Verdict(rule.kind, rule.reason)
        if failure.cause == "agent_lost":
            return Verdict("software", "the agent's process ended, and its ranks with it")
        if failure.cause == "start":
            return Verdict("software", "its process could not be started")
        return self._user(failure, view, rule.reason if rule is not None else "the job's own code raised it")

    def _user(self, failure: Failure, view: JobView, reason: str) -> Verdict:
        times = 1 + len({earlier.generation for earlier in view.failures if _again(failure, earlier)})
        if self.options.repeats is None or times < self.options.repeats:
            return Verdict("user", reason)
        at = f"at step {failure.step}" if failure.step >= 0 else "before the first step"
        if times > 1:
            reason = f"{reason}, for the {_nth(times)} time {at}: it would again"
        return Verdict("user", reason, fatal=True)


def _restarts(lost: tuple[RankRef, ...], view: JobView) -> int:
    """Return how often these ranks were started again because one of their processes had failed."""
    return sum(
        bool(attempt.causes)
        and not any(cause in _NOT_ITS_OWN for cause in attempt.causes)
        and any(key in lost for key in attempt.restart)
        for attempt in view.attempts
    )


def _meaning(failure: Failure) -> Rule | None:
    """Return the meaning of the message, or else that of the exceptions behind it."""
    return known(failure.message.splitlines()) or known(raised_lines(failure.traceback))


def _again(failure: Failure, earlier: Failure) -> bool:
    """Return True if `earlier` is the same exception at the same place before a restart.

    Peers' failures do not count.
    """
    return (
        earlier.cause == failure.cause
        and (earlier.role, earlier.operator, earlier.step) == (failure.role, failure.operator, failure.step)
        and earlier.generation < failure.generation
        and _bare(earlier.message) == _bare(failure.message)
    )


def _bare(message: str) -> str:
    """Return the message without memory addresses and indented lines, which give details: both differ between runs."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", re.sub(r"\n[ \t].*", "", message))


def _unmade(failure: Failure) -> Verdict:
    """Return the verdict on a failed environment. If pip could make it before, the fault is on the rank's new node."""
    if failure.generation:
        return Verdict("software", "its role's environment could not be made where it was started again")
    return Verdict("user", "its role's environment could not be made, and would not be a second time", fatal=True)


def _died(failure: Failure) -> Verdict:
    """Return the verdict on a dead process. One that gave up may have printed why; a killed one did not know."""
    how = _killed(failure.signal) if failure.cause == "signal" else _ended(failure.exit_code)
    said = known(failure.log_tail.splitlines()) if failure.signal not in (signals.SIGKILL, signals.SIGTERM) else None
    if said is None or said.kind not in ("hardware", "software"):
        return Verdict("software", how)
    return Verdict(said.kind, f"{said.reason}, as the last it printed says; {how}")


def _killed(signal: int | None) -> str:
    if signal in _CRASHES:
        return "a crash in native code"
    return _SIGNALS.get(signal or 0, "ended by a signal")


def _ended(code: int | None) -> str:
    """A shell, or a container's first process, makes 128 + n of signal n."""
    if code == 0:
        return "the code ended its process past Python: os._exit(0), an exec, or exit() in a library"
    if code is not None and code > 128:
        return f"exit code {code} stands for signal {code - 128}: {_killed(code - 128)}"
    return "its process ended by itself, without an exception"


def _nth(times: int) -> str:
    return {2: "second", 3: "third"}.get(times, f"{times}th")
