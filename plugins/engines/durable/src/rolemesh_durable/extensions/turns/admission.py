"""The beginning of a call that may block others: its slot must be free for it, and its whole group must be there."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import Workload
from rolemesh_durable.extensions.turns.order import ABSENT, STARTING, Row, is_before, is_free
from rolemesh_durable.extensions.turns.page import TurnPage
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.page import EDGE, GATHERING, LOADING, PHASE, SINCE_NS, TURN
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["TurnAdmission"]

LOOK_S = 0.001
"""Seconds between two looks at the page of the slot."""


class TurnAdmission:
    """Admits one call after the other: ``next`` names it, ``take`` waits until it may begin.

    If ranks take turns on a slot, a rank stays loaded between its turns as long as no other rank's turn comes first.
    """

    def __init__(
        self, who: RankRef, endpoint: Endpoint, status: StatusPage, page: TurnPage | None, barrier: GroupBarrier | None
    ) -> None:
        """`page` is that of the rank's slot, if it takes turns. `barrier` is that of its group, if it has one."""
        self._member, self._endpoint, self._status_page = who, endpoint, status
        self._page, self.barrier = page, barrier
        self.turns = page is not None
        self._position = STARTING
        self._loaded = self._claimed = self._held = False
        self._workload: Workload | None = None
        self._spent = 0
        self._span: Callable[[int, int, int, int], None] | None = None

    def set_up(self, workload: Workload, span: Callable[[int, int, int, int], None]) -> None:
        """Take the workload, which is loaded: its setup was the first turn. Give `span` the waits from now on."""
        self._workload, self._loaded, self._span = workload, True, span

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
        began, fields = monotonic_ns(), self._status_page.fields
        before = fields[PHASE], fields[EDGE]
        while True:
            self._wait(self._claim, TURN)
            if self.barrier is None or self._pass(self.barrier):
                break
        if (fields[PHASE], fields[EDGE]) != before:
            fields[PHASE], fields[EDGE], fields[SINCE_NS] = *before, monotonic_ns()
        self._held = True
        self._publish()
        if self._page is not None and not self._loaded and self._workload is not None:
            self._loaded, loading = True, monotonic_ns()
            before = fields[PHASE], fields[EDGE]
            fields[PHASE], fields[EDGE], fields[SINCE_NS] = LOADING, -1, loading
            self._workload.onload()
            self._show(LOADING, loading)
            fields[PHASE], fields[EDGE], fields[SINCE_NS] = *before, monotonic_ns()
        self._spent += monotonic_ns() - began

    def leave(self) -> None:
        """Leave for good: no call will follow."""
        self._position, self._held, self._claimed = ABSENT, False, False
        if self._page is not None and self._loaded:
            self._make_room()
        self._publish()

    def spent(self) -> int:
        """Return the nanoseconds spent on waiting, loading and making room since the last call."""
        spent, self._spent = self._spent, 0
        return spent

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
        self._wait(lambda: barrier.open or self._is_before(), GATHERING)
        if barrier.open:
            return True
        barrier.leave()
        self._wait(lambda: barrier.open or barrier.left, GATHERING)
        if barrier.open:
            return True
        self._claimed = False
        self._publish()
        self.idle()
        return False

    def _wait(self, condition: Callable[[], bool], phase: int) -> None:
        if condition():
            return
        fields, began = self._status_page.fields, monotonic_ns()
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = phase, -1, began
        while not condition():
            if self._page is None:
                self._endpoint.wait()
            else:
                self._endpoint.pump(LOOK_S)
            if self._endpoint.stopping:
                raise Stopping
        self._show(phase, began)

    def _show(self, phase: int, began: int) -> None:
        if self._span is not None:
            self._span(phase, -1, began, monotonic_ns())

    def _is_before(self) -> bool:
        return self._page is not None and is_before(self._page.read(), self._page.row(self._member))

    def _make_room(self) -> None:
        fields, began = self._status_page.fields, monotonic_ns()
        before = fields[PHASE], fields[SINCE_NS]
        fields[PHASE], fields[SINCE_NS] = LOADING, began
        if self._workload is not None:
            self._workload.offload()
            self._show(LOADING, began)
        self._loaded = False
        self._publish()
        fields[PHASE], fields[SINCE_NS] = before
        self._spent += monotonic_ns() - began

    def _publish(self) -> None:
        if self._page is not None:
            self._page.write(self._member, Row(self._position, self._loaded or self._claimed))
