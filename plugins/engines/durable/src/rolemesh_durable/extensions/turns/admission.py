"""The beginning of a call that may block others: its slot must be free for it, and its whole group must be there."""

from __future__ import annotations

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import Workload
from rolemesh_durable.extensions.turns.order import ABSENT, STARTING, Row, is_before, is_free
from rolemesh_durable.extensions.turns.page import TurnPage
from rolemesh_durable.extensions.turns.phases import GATHERING, LOADING, TURN
from rolemesh_durable.protocol.rank.effects import Waits
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier

__all__ = ["TurnAdmission"]

LOOK_S = 0.001
"""Seconds between two looks at the page of the slot."""


class TurnAdmission:
    """Admits one call after the other: ``next`` names it, ``take`` waits until it may begin.

    If ranks take turns on a slot, a rank stays loaded between its turns as long as no other rank's turn comes first.
    """

    def __init__(self, who: RankRef, waits: Waits, page: TurnPage | None, barrier: GroupBarrier | None) -> None:
        """`page` is that of the rank's slot, if it takes turns. `barrier` is that of its group, if it has one."""
        self._member, self._waits, self._page, self.barrier = who, waits, page, barrier
        self._look_s = LOOK_S if page is not None else 0.0
        self.turns = page is not None
        self._position = STARTING
        self._loaded = self._claimed = self._held = False
        self._workload: Workload | None = None

    def set_up(self, workload: Workload) -> None:
        """Take the workload, which is loaded: its setup was the first turn."""
        self._workload, self._loaded = workload, True

    def next(self, position: int) -> None:
        """End the call that was taken last. The next one is at `position`."""
        self._position, self._held, self._claimed = position, False, False
        self._publish()
        self.idle()

    def idle(self) -> None:
        """Make room if it is another rank's turn and this rank's is not in use. Call it while waiting."""
        if self._loaded and not self._claimed and self._is_before():
            self._make_room()

    def take(self) -> None:
        """Wait until the call may begin, and load. Raises `Stopping`, and what the workload's ``onload`` raises."""
        if self._held:
            return
        while True:
            self._waits.until(self._claim, TURN, look_s=self._look_s)
            if self.barrier is None or self._pass(self.barrier):
                break
        self._held = True
        self._publish()
        if self._page is not None and not self._loaded and self._workload is not None:
            self._loaded = True
            with self._waits.during(LOADING):
                self._workload.onload()

    def leave(self) -> None:
        """Leave for good: no call will follow."""
        self._position, self._held, self._claimed = ABSENT, False, False
        if self._page is not None and self._loaded:
            self._make_room()
        self._publish()

    def _claim(self) -> bool:
        """Claim the slot if its time has come.

        An earlier turn may have appeared since, so check again after the claim.
        """
        if self._page is None:
            return True
        me = self._page.row(self._member)
        if not is_free(self._page.read(), me):
            self.idle()
            return False
        self._claimed = True
        self._publish()
        if not is_free(self._page.read(), me):
            self._claimed = False
            self._publish()
        return self._claimed

    def _pass(self, barrier: GroupBarrier) -> bool:
        """Enter with the group. Return False if another rank's turn has come first: the slot is given up for it."""
        barrier.arrive(self._position)
        self._waits.until(lambda: barrier.open or self._is_before(), GATHERING, look_s=self._look_s)
        if barrier.open:
            return True
        barrier.leave()
        self._waits.until(lambda: barrier.open or barrier.left, GATHERING, look_s=self._look_s)
        if barrier.open:
            return True
        self._claimed = False
        self._publish()
        self.idle()
        return False

    def _is_before(self) -> bool:
        return self._page is not None and is_before(self._page.read(), self._page.row(self._member))

    def _make_room(self) -> None:
        if self._workload is not None:
            with self._waits.during(LOADING):
                self._workload.offload()
        self._loaded = False
        self._publish()

    def _publish(self) -> None:
        if self._page is not None:
            self._page.write(self._member, Row(self._position, self._loaded or self._claimed))
