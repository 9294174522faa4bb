"""The failover level: what died starts again where it was, as long as it does not die again too soon."""

from pydantic import Field
from rolemesh import Budget, FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(FailoverLevel):
    """Restarts what died from the snapshots in its node's memory, with exponential back-off.

    The first restart is free. After that, ranks must have lived for `patience_s` since the last one, and `factor` times
    longer after each. A rank that dies sooner is the next level's.
    """

    class Options(Budget, frozen=True):
        """Options in the job file, with the `max_attempts` and `window_s` of every level."""

        patience_s: float = Field(default=1.0, ge=0, description="Seconds to live before a second restart.")
        factor: float = Field(default=2.0, ge=1, description="How much longer before each further one.")

    scope = "process"
    options: Options

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """The ranks that the failure took down; None for a lost node, whose memory is lost too, and out of patience."""
        restart = view.lost_with(failure)
        if failure.cause == "node_lost" or not restart:
            return None
        since = view.now - self.options.window_s
        earlier = [attempt.at for attempt in view.attempts if attempt.at > since and {*attempt.restart} & {*restart}]
        if earlier and view.now - earlier[-1] < self._patience_s(len(earlier)):
            return None
        reason = f"restart {len(earlier) + 1}, where it was"
        return RecoveryPlan(restart, reason=reason)

    def _patience_s(self, restarts: int) -> float:
        return self.options.patience_s * self.options.factor ** (restarts - 1)
