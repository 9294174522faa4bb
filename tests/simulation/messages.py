"""An extension with parts in ranks and in the master: each rank sends its newest step, and the master answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rolemesh_durable.protocol.extension_message import ExtensionMessage
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.state import RankRecord
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.protocol.refs import StartRef

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["Counting", "Teller"]


class Finished(ExtensionMessage, frozen=True, tag="counting/finished"):
    """A rank has finished a step."""

    step: int


class Counted(ExtensionMessage, frozen=True, tag="counting/counted"):
    """The master of this epoch has heard of a finished step."""

    epoch: int
    step: int


class Counting(MasterExtension):
    """Answers each rank with the step of its newest message."""

    messages = (Finished,)

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._steps: dict[StartRef, int] = {}

    def heard(self, rank: RankRecord, message: ExtensionMessage) -> None:
        """Keep the step."""
        assert isinstance(message, Finished)
        self._steps[rank.launch.start] = message.step

    def says(self, rank: RankRecord) -> Iterable[ExtensionMessage]:
        """Tell the rank its step."""
        step = self._steps.get(rank.launch.start)
        return () if step is None else (Counted(self._context.config.epoch, step),)


class Teller(RankExtension):
    """Tells the master each step. The rank ends once the master has answered the last one."""

    messages = (Counted,)

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        self._told = -1
        self._counted = Counted(-1, -1)

    def heard(self, message: ExtensionMessage) -> None:
        """Check that it is newer than the last one, and of a step that this rank has finished."""
        assert isinstance(message, Counted)
        before, self._counted = self._counted, message
        if (message.epoch, message.step) < (before.epoch, before.step) or message.step > self._told:
            why = f"{self._rank.name} hears {message} after {before}, and has told {self._told}"
            self._rank.world.fail("an extension gets no older message", why)

    def step_done(self, step: int, held: bool) -> None:
        """Tell the step."""
        self._tell(step)

    def steps_end(self, finished: int) -> None:
        """Wait for the answer."""
        self._tell(finished)
        self._rank.until(lambda: self._counted.step >= finished)

    def _tell(self, step: int) -> None:
        self._told = max(self._told, step)
        self._rank.master.say(Finished(self._told))
