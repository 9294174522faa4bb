"""The master's part of finding stragglers: it watches reports, journals each straggler, and asks the diagnosers."""

from __future__ import annotations

from rolemesh.api.rank_ref import OfRank
from rolemesh_durable.extensions.stragglers.watch import StragglerWatch
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, MasterParts
from rolemesh_durable.protocol.master.state import RankRecord

__all__ = ["Straggler", "Stragglers"]


class Straggler(OfRank, ExtensionRecord, frozen=True, tag="straggler"):
    """A rank is much slower than the others of its role."""

    message: str


class Stragglers(MasterExtension):
    """Watches the ranks that run. A straggler fails only if a diagnoser returns a verdict."""

    records = (Straggler,)

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._coordinator = parts.coordinator
        self._watch = StragglerWatch()

    def rank_reported(self, rank: RankRecord, before: m.RankReport | None, seen: m.RankReport) -> None:
        """Compare the rank with the others of its role."""
        if rank.state != "running":
            return
        slow = self._watch.seen(seen, self._context.now, collective=rank.launch.collective)
        if slow is not None:
            self._context.tell(Straggler(slow.role, slow.rank, slow.message))
            self._coordinator.suspected(slow)
