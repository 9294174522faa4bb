"""The master's part of the extension `debug`: it passes orders for profiles to ranks, and journals who asked.

A new master knows nothing of the orders of the one before it, so an order may be lost. Then nobody profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_debug.profile_messages import ProfileDone, ProfileOrder
from rolemesh_debug.requests import MOST_STEPS, NoteStacks, ProfileRank
from rolemesh_durable.api.extensions import (
    ExtensionMessage,
    ExtensionRecord,
    MasterExtension,
    MasterParts,
    MasterShell,
    RankRecord,
    ShellPart,
)

__all__ = ["Inspections", "Orders", "Profiles"]

Orders = dict[RankRef, ProfileOrder]
"""The orders that ranks have not carried out yet. Both parts run in the master's thread."""


NOTHING = ProfileOrder(0, "")
"""The order that replaces one that is carried out, so that a rank which starts again does not carry it out again."""


class StacksAsked(ExtensionRecord, frozen=True, tag="stacks_asked"):
    """Somebody has looked at the stacks of a rank."""

    role: str
    rank: int
    reason: str


class ProfileAsked(ExtensionRecord, frozen=True, tag="profile_asked"):
    """Somebody has asked for a profile of a rank."""

    role: str
    rank: int
    steps: int
    reason: str


class ProfileWritten(ExtensionRecord, frozen=True, tag="profile_written"):
    """The rank has written the profile to `file` in the run's folder, or it has `failed`."""

    role: str
    rank: int
    first: int
    steps: int
    file: str
    failed: str
    reason: str


class Profiles(MasterExtension):
    """Sends orders to ranks, and journals their answers."""

    records = (StacksAsked, ProfileAsked, ProfileWritten)
    messages = (ProfileDone,)

    def __init__(self, parts: MasterParts, orders: Orders) -> None:
        super().__init__(parts)
        self._orders = orders

    def says(self, rank: RankRecord) -> Iterable[ExtensionMessage]:
        """Return the order for the rank."""
        order = self._orders.get(rank.launch.ref)
        return (order,) if order is not None else ()

    def heard(self, rank: RankRecord, message: ExtensionMessage) -> None:
        """Journal the answer to the present order, and forget the order."""
        ref = rank.launch.ref
        order = self._orders.get(ref)
        if isinstance(message, ProfileDone) and order is not None and order.reason == message.reason:
            self._orders[ref] = NOTHING
            self.tell(
                ProfileWritten(
                    ref.role, ref.rank, message.first, message.steps, message.file, message.failed, message.reason
                )
            )


class Inspections(ShellPart):
    """Answers the requests of clients."""

    def __init__(self, shell: MasterShell, orders: Orders) -> None:
        super().__init__(shell)
        self._machine, self._journal = shell.machine, shell.journal
        self._orders = orders

    def requests(self) -> Mapping[type, Callable[[Any], str]]:
        """The requests for profiles, and the news of stacks."""
        return {ProfileRank: self._profile, NoteStacks: self._stacks}

    def _profile(self, asked: ProfileRank) -> str:
        ref = RankRef(asked.role, asked.rank)
        if why := self._refusal(ref):
            return why
        if not 1 <= asked.steps <= MOST_STEPS:
            return f"a profile has 1 to {MOST_STEPS} steps, not {asked.steps}"
        if self._orders.get(ref, NOTHING).steps:
            return f"{ref} is being profiled already"
        order = ProfileOrder(asked.steps, asked.reason)
        self._orders[ref] = order
        self._journal(ProfileAsked(ref.role, ref.rank, asked.steps, asked.reason), _nothing)
        return ""

    def _stacks(self, asked: NoteStacks) -> str:
        if why := self._refusal(RankRef(asked.role, asked.rank)):
            return why
        self._journal(StacksAsked(asked.role, asked.rank, asked.reason), _nothing)
        return ""

    def _refusal(self, ref: RankRef) -> str:
        ranks = self._machine().state.ranks
        return "" if ref in ranks else f"the job has no rank {ref}; the roles are {', '.join(_roles(ranks))}"


def _roles(ranks: Iterable[RankRef]) -> list[str]:
    return sorted({ref.role for ref in ranks})


def _nothing() -> None:
    """Nobody waits for the record."""
