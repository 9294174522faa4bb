"""The messages between a rank's extensions and their parts in the master. The agent passes them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rolemesh_durable.protocol.extension_message import ExtensionMessage, Sealed
from rolemesh_durable.protocol.messages import MasterSays, RankSays, RankToAgent
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["MasterMail"]


class MasterMail:
    """Keeps the newest message of each class, in both directions."""

    def __init__(self, start: StartRef, control: Control, report: Callable[[RankToAgent], None]) -> None:
        """`report` sends the agent a message. The rank of `start` repeats its own to each incarnation of the agent."""
        self._start, self._report = start, report
        self._said: dict[str, Sealed] = {}
        self._heard: dict[str, Sealed] = {}
        self._hear: Callable[[Iterable[Sealed]], None] = lambda messages: None
        control.attend_master(self._take)
        control.on_adopted.append(self._say_again)

    def say(self, message: ExtensionMessage) -> None:
        """Send a message to the extension's part in the master. Does nothing if it equals the one before."""
        sealed = message.sealed()
        if self._said.get(sealed.name) != sealed:
            self._said[sealed.name] = sealed
            self._report(RankSays(*self._start, sealed))

    def attend(self, hear: Callable[[Iterable[Sealed]], None]) -> None:
        """Call `hear` with each new message of the master, and with those that have come already."""
        self._hear = hear
        hear(tuple(self._heard.values()))

    def _take(self, message: MasterSays) -> None:
        new = [each for each in message.messages if self._heard.get(each.name) != each]
        self._heard |= {each.name: each for each in new}
        self._hear(new)

    def _say_again(self) -> None:
        for sealed in self._said.values():
            self._report(RankSays(*self._start, sealed))
