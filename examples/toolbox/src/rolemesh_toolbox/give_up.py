"""The failover level `give-up`: it ends a job that no restart can help, with a reason."""

from __future__ import annotations

import re

from pydantic import Field
from rolemesh import Budget, FailoverLevel, Failure, GiveUp, JobView, Pass, hookimpl

__all__ = ["GivingUp"]


class GivingUpOptions(Budget, frozen=True):
    """Options of the `give-up` level."""

    messages: list[str] = Field(
        default_factory=list, description="Regular expressions: a failure whose message has one ends the job."
    )
    failures: int = Field(default=10, ge=1, description="The job ends with so many failures within `window_s` seconds.")


class GivingUp(FailoverLevel):
    """Ends the job at a hopeless message, or after too many recent failures. Passes all other failures on.

    Put it before the levels that restart something. Its scope is `job`, so it also gets failures of nodes.
    """

    Options = GivingUpOptions
    options: GivingUpOptions
    api_version = 1
    scope = "job"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> GiveUp | Pass:
        """Return `GiveUp` with the reason, or `Pass`."""
        for pattern in self.options.messages:
            if found := re.search(pattern, failure.message):
                return GiveUp(f"no restart can help: {found[0]!r} in what {failure.role or failure.node} says")
        lately = 1 + sum(at > view.now - self.options.window_s for at in view.failed_at)
        if lately >= self.options.failures:
            return GiveUp(f"{lately} failures within {self.options.window_s:g} s; it is time to look at them")
        return Pass(f"{lately} of {self.options.failures} failures within {self.options.window_s:g} s")
