"""Turns in one rank: a call begins when the rank's slot is free for it and its whole collective group is there."""

from __future__ import annotations

from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.turns.admission import TurnAdmission
from rolemesh_durable.extensions.turns.order import Positions
from rolemesh_durable.extensions.turns.page import PAGE, TurnPage
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.rank.services import Rank, RankPlace

__all__ = ["Beginning", "RankTurns"]


class Beginning:
    """A rank before it has its part: one that takes turns on its slot, or belongs to a collective group."""

    def __init__(self, place: RankPlace) -> None:
        """Open the page of the slot. The agent's next incarnation finds it in this process."""
        launch, self._place = place.start.launch, place
        self._page = TurnPage(place.start.parts[PAGE], launch.turns) if launch.turns else None
        self._admission: TurnAdmission | None = None

    def take(self) -> None:
        """Take a turn: the setup needs memory that other ranks may hold, and ranks of a group meet in it."""
        place, launch = self._place, self._place.start.launch
        if not launch.turns and not launch.collective:
            return
        self._admission = TurnAdmission(launch.ref, place.waits, self._page, place.barrier)
        self._admission.next(Positions(place.start.job.graph).setup(launch.role))
        self._admission.take()

    def part_of(self, rank: Rank) -> RankTurns | None:
        """Return the part of a rank that takes turns, or whose group begins each call together; None for any other."""
        admission = self._admission
        if admission is None:
            return None
        admission.set_up(rank.workload)
        if not admission.turns and not type(rank.workload).lockstep:
            return None
        return RankTurns(rank.ports, admission)


class RankTurns(RankExtension):
    """The turns of one rank."""

    def __init__(self, ports: Ports[Any], admission: TurnAdmission) -> None:
        job = ports.job
        self._admission, self._ports, self._role = admission, ports, ports.mail.site.role
        self._ops = job.graph.of_role(self._role)
        self._activity = job.activity
        self._positions = Positions(job.graph)
        self.postpones_snapshots = admission.barrier is not None and not admission.turns

    def before_repeat(self, op: OpCall, resume: int) -> None:
        """Take the turn of the repeated call."""
        self._admission.next(self._positions.repeat(op.id, resume))

    def before_step(self, step: int) -> None:
        """Wait for the turn of the first call; in a step without calls, for the turn of the last one's snapshot."""
        if self._ops:
            active = (op.id for op in self._ops if self._activity.active(op.id, step))
            self._admission.next(self._positions.call(next(active, self._ops[-1].id), step))

    def before_inputs(self, op: OpCall, step: int) -> None:
        """Announce the turn of `op` as the next one."""
        self._admission.next(self._positions.call(op.id, step))

    def before_call(self, op: OpCall, step: int) -> None:
        """Begin the turn once the call needs to wait for nothing else: neither for inputs nor for credits.

        The ranks that it would wait for may need the slot, or an answer from a rank that is in the call.
        """
        if op.streaming:
            for _, port in self._ports.inputs.get(op.id, ()):
                port.await_all(step)
        out = self._ports.outputs.get(op.id)
        if out is not None:
            out.await_credits(step)
        self._admission.take()

    def before_snapshot(self) -> None:
        """Take a turn: the state may have left the devices."""
        self._admission.take()

    def idle(self) -> bool:
        """Make room for ranks whose turn comes first."""
        self._admission.idle()
        return True

    def steps_end(self, finished: int) -> None:
        """Announce the turn of the last snapshot as the next one."""
        self._admission.next(self._positions.last(self._role, finished + 1))

    def ended(self) -> None:
        """Take no more turns."""
        self._admission.leave()
