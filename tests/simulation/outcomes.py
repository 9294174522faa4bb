"""The log of a simulated rank's calls, and a witness beside it: the witness sees what the log must repeat."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tests.simulation.memory import CallLog

from rolemesh.api.rank_ref import RankRef

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["Heard", "Place", "Witness", "packed_outcome", "unpacked_outcome"]

OUTCOME = struct.Struct("<qq")
Place: TypeAlias = tuple[int, int, str]
"""A call's operator, step, and place in its conversation."""


class Heard(NamedTuple):
    """The outcome of a call: its kind, and a word that no other answer has."""

    kind: int
    word: int


def packed_outcome(key: bytes, heard: Heard) -> bytes:
    """Return the decision about an outcome."""
    return key + OUTCOME.pack(*heard)


def unpacked_outcome(outcome: bytes) -> Heard:
    """Return the outcome in a history."""
    return Heard(*OUTCOME.unpack(outcome))


class Witness:
    """The invariants of conversations. The witness forgets the calls of a log together with the log."""

    def __init__(self) -> None:
        self._letters: dict[Place, tuple[RankRef, CallLog]] = {}

    def hears(self, rank: SimRank, log: CallLog, place: Place, key: bytes, heard: object) -> None:
        """An operator receives an outcome, or a session. A later life hears the same there."""
        before = log.heard.setdefault(place, (key, heard))
        if before != (key, heard):
            rank.world.fail(
                "a conversation is repeated as it was", f"{rank.name} hears {heard} at {place}, after {before[1]}"
            )

    def sends(self, rank: SimRank, log: CallLog, place: Place, logged: bool) -> None:
        """A call leaves. Its operator has not heard an outcome before, if outcomes are logged."""
        if logged and place in log.heard:
            rank.world.fail("a turn that was heard is not asked again", f"{rank.name} asks again at {place}")

    def takes(self, rank: SimRank, sent: tuple[int, int], source: tuple[int, int]) -> None:
        """An answer counts."""
        if sent != source:
            rank.world.fail("no answer of an older life is taken", f"{rank.name} asked {sent}, and hears {source}")

    def acts(self, rank: SimRank, caller: RankRef, log: CallLog, place: Place) -> None:
        """A call runs that is not repeatable."""
        before = self._letters.get(place)
        if before is not None and (before[0] != caller or before[1] is log):
            rank.world.fail("no action comes twice", f"{rank.name} acts at {place} for {caller}, after {before[0]}")
        self._letters[place] = caller, log

    def ran(self, rank: SimRank, key: bytes, given_up: bool) -> None:
        """A call has run to its end."""
        if given_up:
            rank.world.fail("a call that is given up is cancelled", f"{rank.name} runs {key.hex()} to its end")
