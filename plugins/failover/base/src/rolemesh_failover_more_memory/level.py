"""The level `more-memory`: the new amount of memory of a role that ran out of it."""

from __future__ import annotations

from signal import SIGKILL

from pydantic import Field

from rolemesh import Budget, FailoverLevel, Failure, JobView, Pass, RecoveryPlan, hookimpl

__all__ = ["MoreMemoryLevel", "MoreMemoryOptions"]

NAME = "memory_gb"
KILLED = 128 + SIGKILL
"""Exit code of a shell, or of a container's first process, whose command was ended by SIGKILL."""


class MoreMemoryOptions(Budget):
    """Factor of the memory, and the failures that it applies to."""

    factor: float = Field(default=2.0, gt=1, description="Factor of the role's memory, up to its limit.")
    killed: bool = Field(
        default=False,
        description="Treat every rank that SIGKILL ended as out of memory. The kernel does that, but users do, too.",
    )


class MoreMemoryLevel(FailoverLevel):
    """Gives a role more memory after one of its ranks ran out of it, within the limits of the job file.

    All ranks of the role restart from the newest snapshot in memory: on their nodes if these have enough, otherwise on
    others.
    """

    Options = MoreMemoryOptions
    options: MoreMemoryOptions

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | Pass:
        """Propose twice the memory for the role of a rank that ran out of it; pass on everything else."""
        role = failure.role
        if failure.rank < 0 or not view.lost_with(failure) or not self._out_of_memory(failure, view):
            return Pass("no rank was out of memory")
        has, most = view.resources.get(role, {}).get(NAME, 0.0), view.most.get(role, {}).get(NAME, 0.0)
        if not has or not most:
            return Pass(f"the job file does not say how much memory {role} has and may have ({NAME})")
        if has >= most:
            return Pass(f"{role} has {NAME} {has:g}, which is its limit")
        more = min(most, self.options.factor * has)
        return RecoveryPlan(
            view.lost_with(failure),
            reason=f"{role} ran out of memory: {NAME} {more:g} instead of {has:g}",
            resources={role: {NAME: more}},
        )

    def _out_of_memory(self, failure: Failure, view: JobView) -> bool:
        """Return whether the diagnosis says so, for the node's memory and not a GPU's."""
        if self.options.killed and (failure.signal == SIGKILL or failure.exit_code == KILLED):
            return True
        reason = view.verdict.reason.lower() if view.verdict is not None else ""
        return "out of memory" in reason and "gpu" not in reason
