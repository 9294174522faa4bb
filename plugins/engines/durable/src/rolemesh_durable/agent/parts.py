"""The parts of extensions in an agent, and their hooks, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions import Extension
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess, Seen
from rolemesh_durable.protocol.extension_message import Sealed, tag_of
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.rank.extension import overriding

__all__ = ["Parts"]


class Parts:
    """All parts of one agent. See `AgentPart` for the hooks."""

    def __init__(self, process: AgentProcess, extensions: Iterable[Extension]) -> None:
        parts = [part for each in extensions if (part := each.in_agent(process)) is not None]
        self.adopted = overriding(AgentPart, parts, "adopted")
        self.gone = overriding(AgentPart, parts, "gone")
        self.close = overriding(AgentPart, parts, "close")
        self.forget = overriding(AgentPart, parts, "forget")
        self._durable = overriding(AgentPart, parts, "durable")
        self.ends = overriding(AgentPart, parts, "ends")
        self._fetch = overriding(AgentPart, parts, "fetch")
        self._look = overriding(AgentPart, parts, "look")
        self._starting = overriding(AgentPart, parts, "starting")
        self._report = overriding(AgentPart, parts, "report")
        self._messages: dict[str, tuple[type, Callable[[Any], None]]] = {
            tag_of(kind): (kind, handle) for part in parts for kind, handle in part.messages().items()
        }

    def handle(self, message: Sealed) -> None:
        """Pass a message to the part that handles its kind. If none does, it belongs to another version: drop it."""
        if message.name in self._messages:
            kind, handle = self._messages[message.name]
            handle(message.opened(kind))

    def starting(self, launch: RankLaunch) -> dict[str, str]:
        """Return the values for the parts of a rank that is about to be forked."""
        return {name: value for starting in self._starting for name, value in starting(launch).items()}

    def durable(self, ref: RankRef, step: int) -> int:
        """Return the newest step of the rank, up to `step`, that is durable for all parts."""
        return min((durable(ref, step) for durable in self._durable), default=step)

    def fetch(self, launch: RankLaunch) -> bool:
        """Let the first part that can do so fetch a rank's snapshot. Return False if none can."""
        return any(fetch(launch) for fetch in self._fetch)

    def look(self) -> Seen:
        """Return the news of all parts."""
        seen = [look() for look in self._look]
        stored = tuple(each for one in seen for each in one.stored)
        warning = "; ".join(one.warning for one in seen if one.warning)
        address = next((one.address for one in seen if one.address), "")
        return Seen(stored, warning, sum(one.refused for one in seen), address)

    def report(self) -> tuple[Sealed, ...]:
        """Return what the parts report."""
        return tuple(Sealed.of(told) for report in self._report if (told := report()) is not None)
