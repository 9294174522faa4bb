"""A rank at the barrier before its group's calls. It sends messages of `protocol.rank.barrier` from rank to rank."""

from __future__ import annotations

from typing import Any

from rolemesh_durable.protocol.rank.agreement import Agreement
from rolemesh_durable.protocol.rank.barrier import AGAIN, ARRIVE, GO, LEAVE, NEXT, SHOW, TAKE, VOTE, WANT, Barrier
from rolemesh_durable.protocol.rank.effects import Mail
from rolemesh_durable.protocol.rank.owing import Appointments

__all__ = ["GroupBarrier"]

KEEPER = 0


class GroupBarrier:
    """One rank's side of the barrier, and in rank 0 also the coordinator's."""

    def __init__(self, mail: Mail[Any], world_size: int) -> None:
        site = mail.site
        self._mail, self._role, self._world_size = mail, site.role, world_size
        self._guard = Barrier(world_size) if site.rank == KEEPER else None
        self._agreement = Agreement(world_size, site.generation)
        self.verdict: bool | None = None
        """True if this rank may show the value that it voted on, False if not, None before the answer."""
        self._position, self._answer = -1, -1
        self.keeps = self._guard is not None
        """True in rank 0, which releases the others."""
        self.taking = -1
        """The newest step whose snapshot the group takes."""
        self.appointments = Appointments()
        mail.gather(self)

    def arrive(self, position: int) -> None:
        """Report that this rank is ready for the call at `position`."""
        self._position, self._answer = position, -1
        self._say(KEEPER, ARRIVE, position)

    def leave(self) -> None:
        """Ask to step back. Either `left` becomes true or, if it is too late, `open` does."""
        self._say(KEEPER, LEAVE, self._position)

    def want(self, step: int) -> None:
        """Ask the group to take the snapshot of `step`. Only rank 0 may do so after it has arrived."""
        self._say(KEEPER, WANT, step)

    def appoint(self, step: int) -> None:
        """In rank 0 of a group whose ranks do not meet: announce `step` as the next snapshot that all take."""
        for rank in range(self._world_size):
            self._say(rank, NEXT, step)

    def vote(self, position: int, made: int) -> None:
        """Vote on the value at `position`; the `verdict` follows."""
        self.verdict = None
        self._say(KEEPER, VOTE, position, made)

    @property
    def open(self) -> bool:
        """True if all ranks of the group have arrived, so they enter."""
        return self._answer == GO

    @property
    def left(self) -> bool:
        """True if this rank has stepped back; it may arrive again."""
        return self._answer not in (-1, GO)

    def message(self, rank: int, generation: int, kind: int, position: int, vote: int) -> None:
        """Handle a message of a rank of the group. Messages of its dead generations are dropped."""
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
