"""The messages between a rehearsal's part in the master and its parts in the agents."""

from __future__ import annotations

import msgspec

from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh_durable.protocol.failures import FaultKind

__all__ = ["ChildKilled", "Inject"]


class Inject(msgspec.Struct, frozen=True, tag="rehearsal.inject"):
    """Make a rank fail, or with `rank` -1 the agent itself."""

    kind: FaultKind
    role: str = ""
    rank: int = -1

    @property
    def ref(self) -> RankRef:
        """The rank."""
        return RankRef(self.role, self.rank)


class ChildKilled(OfRank, frozen=True, tag="rehearsal.child_killed"):
    """The agent has killed `pid`, a process that the rank had started. `name` is the process's."""

    pid: int
    name: str
