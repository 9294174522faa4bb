"""The failover levels `quarantine`, which leaves bad nodes, and `give-up`, which ends hopeless jobs."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import Field
from rolemesh import Budget, FailoverLevel, Failure, GiveUp, JobView, Pass, RecoveryPlan, hookimpl

__all__ = ["GivingUp", "Quarantine"]

STRIKES = ("signal", "exit", "agent_lost", "hang", "start")
"""Causes for which the node may be responsible.

An exception comes from the code. In a group it often only follows from another rank's death.
"""


class QuarantineOptions(Budget, frozen=True):
    """Options of the `quarantine` level."""

    strikes: int = Field(default=2, ge=1, description="Processes that may die on a node before its ranks leave it.")
    most: int = Field(default=1, ge=1, description="Nodes in quarantine at the same time, at most.")


class Quarantine(FailoverLevel):
    """Restarts ranks on their node. At a node's last strike it moves all of the node's ranks to other nodes.

    A node in quarantine gets no ranks while another one is left. If more than `most` nodes are in quarantine, the level
    uses those with fewer strikes again, as Envoy's outlier detection does with hosts.
    """

    Options = QuarantineOptions
    options: QuarantineOptions
    api_version = 1
    scope = "node"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """Return None for a lost node, on which nothing can start, and for a rank that the job does not have."""
        lost = view.lost_with(failure)
        if failure.cause == "node_lost" or not lost:
            return None
        node = next((r.node for r in view.ranks if r.ref == failure.ref), failure.node)
        strikes = Counter(each.node for each in view.failures if each.cause in STRIKES)
        strikes[node] += failure.cause in STRIKES
        if strikes[node] < self.options.strikes:
            reason = f"{strikes[node]} of {self.options.strikes} strikes on {node}: what died starts again there"
            return RecoveryPlan(lost, reason=reason)
        leaving = {mate: None for r in view.ranks if r.node == node for mate in view.group(r.role, r.rank)}
        return RecoveryPlan(
            tuple(leaving),
            avoid=(node, *self._others(node, strikes, view)),
            reason=f"{strikes[node]} strikes on {node}: its ranks move to other nodes",
        )

    def _others(self, node: str, strikes: Counter[str], view: JobView) -> list[str]:
        """Return the nodes that stay in quarantine beside `node`: those with the most strikes that have no ranks."""
        used = {r.node for r in view.ranks}
        bad = [(-count, name) for name, count in strikes.items() if count >= self.options.strikes]
        return [name for _, name in sorted(bad) if name != node and name not in used][: self.options.most - 1]


class GivingUpOptions(Budget, frozen=True):
    """Options of the `give-up` level."""

    messages: list[str] = Field(
        default_factory=list, description="Regular expressions: a failure whose message has one ends the job."
    )
    failures: int = Field(
        default=10, ge=1, description="Number of failures within `window_s` seconds that end the job."
    )


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
