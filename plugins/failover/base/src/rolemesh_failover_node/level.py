"""The level `node`: the node to leave, the ranks that leave it, and the time that the job may wait for another
place."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolemesh import Budget, FailoverLevel, Failure, JobView, RecoveryPlan, hookimpl

__all__ = ["NodeLevel", "NodeOptions"]


class NodeOptions(Budget):
    """How often a rank may be moved, and what to do if there is no room for it."""

    when_full: Literal["wait", "fail"] = Field(
        default="wait", description="If no other node has room: wait for one, or pass the failure to the next level."
    )
    node_wait_s: float = Field(
        default=300.0,
        gt=0,
        description="With `when_full: wait`, the maximum wait in seconds.",
        json_schema_extra={"needs": "when_full = wait"},
    )


class NodeLevel(FailoverLevel):
    """Moves all ranks of the failing rank's node, and their collective groups, to other nodes.

    The state comes from memory: a group's other nodes have their own snapshots, and with ``snapshots.replicas: 1``
    another node has a copy of those on the lost node. The coordinator asks the placement strategies for the new places.
    """

    Options = NodeOptions
    options: NodeOptions
    scope = "node"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        """Leave the node. Return None if the failure names neither a node nor a rank of the job."""
        at = (failure.role, failure.rank)
        node = next((r.node for r in view.ranks if (r.role, r.rank) == at), failure.node)
        restart = view.lost_with(Failure("node_lost", node=node))
        if not restart:
            return None
        return RecoveryPlan(
            restart,
            avoid=(node,),
            wait_s=self.options.node_wait_s if self.options.when_full == "wait" else 0.0,
            reason=f"the ranks of node {node} move to other nodes",
        )
