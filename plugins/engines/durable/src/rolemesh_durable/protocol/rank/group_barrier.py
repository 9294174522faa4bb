"""A rank at the barrier before its group's calls. It sends the messages of `protocol.barrier` from rank to rank."""

from __future__ import annotations

from typing import Any

from rolemesh_durable.protocol.agreement import Agreement
from rolemesh_durable.protocol.barrier import AGAIN, ARRIVE, GO, LEAVE, NEXT, SHOW, TAKE, VOTE, WANT, Barrier
from rolemesh_durable.protocol.owing import Appointments
from rolemesh_durable.protocol.rank.effects import Mail

__all__ = ["GroupBarrier"]

KEEPER = 0


class GroupBarrier:
    """One rank's side, and in rank 0 the keeper's."""

    def __init__(self, mail: Mail[Any], world_size: int) -> None:
        site = mail.site
        self._mail, self._role, self._world_size = mail, site.role, world_size
        self._guard = Barrier(world_size) if site.rank == KEEPER else None
        self._agreement = Agreement(world_size, site.generation)
        self.verdict: bool | None = None
        """Whether what this rank has voted for may be shown, once that is known."""
        self._position, self._answer = -1, -1
        self.keeps = self._guard is not None
        """Whether this rank lets the others go."""
        self.taking = -1
        """The newest step of which the group takes the snapshot."""
        self.appointments = Appointments()
        mail.gather(self)

    def arrive(self, position: int) -> None:
        """This rank is ready for the call at `position`."""
        self._position, self._answer = position, -1
        self._say(KEEPER, ARRIVE, position)

    def leave(self) -> None:
        """Ask to step back. Either `left` or, if it was too late, `open` becomes true."""
        self._say(KEEPER, LEAVE, self._position)

    def want(self, step: int) -> None:
        """Have the group take the snapshot of `step`; not after this rank has arrived, unless it `keeps`."""
        self._say(KEEPER, WANT, step)

    def appoint(self, step: int) -> None:
        """Of a group whose ranks do not meet, in rank 0: `step` is the next one whose snapshot all take."""
        for rank in range(self._world_size):
            self._say(rank, NEXT, step)

    def vote(self, position: int, made: int) -> None:
        """Say what this rank has of the value at `position`; the `verdict` follows."""
        self.verdict = None
        self._say(KEEPER, VOTE, position, made)

    @property
    def open(self) -> bool:
        """Whether all ranks of the group were there: they go in."""
        return self._answer == GO

    @property
    def left(self) -> bool:
        """Whether this rank has stepped back; it may arrive again."""
        return self._answer not in (-1, GO)

    def message(self, rank: int, generation: int, kind: int, position: int, vote: int) -> None:
        """Take what a rank of the group has said. Words of its dead generations are dropped."""
        if generation < self._mail.generation(self._role, rank):
            return
        if kind in (ARRIVE, LEAVE, WANT):
            for each, answer in self._guard.heard(rank, kind, position) if self._guard is not None else ():
                self._say(each, answer, position)
        elif kind == VOTE:
            for each, agreed in self._agreement.heard(rank, position, vote):
                self._say(each, SHOW if agreed else AGAIN, position)
        elif kind in (SHOW, AGAIN):
            self.verdict = kind == SHOW
        elif kind == NEXT:
            self.appointments.announced(position)
        elif kind == TAKE:
            self.taking = max(self.taking, position)
        elif position == self._position:
            self._answer = kind

    def _say(self, rank: int, kind: int, position: int, vote: int = 0) -> None:
        self._mail.tell_group(rank, kind, position, vote)
