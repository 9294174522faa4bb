"""The agent's part of turns: it creates the pages that show whose turn it is, and marks ranks that are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.turns.order import ABSENT, STARTING, Row
from rolemesh_durable.extensions.turns.page import PAGE, TurnPage
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["TurnPages"]


class TurnPages(AgentPart):
    """One page per slot whose ranks take turns. It exists while the agent, or one of the ranks, is alive.

    They are not files of a folder: ranks that started before and after somebody emptied shared memory must see the same
    page.
    """

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._pages: dict[tuple[RankRef, ...], TurnPage] = {}
        self._of: dict[RankRef, tuple[TurnPage, int]] = {}

    def starting(self, launch: RankLaunch) -> Mapping[str, str]:
        """A rank is about to be forked, and the others wait for it. Return the page's path if it takes turns.

        Raises `OSError` if there is no room for the page.
        """
        member = launch.ref
        if not launch.turns:
            self._of.pop(member, None)
            return {}
        page = self._pages.get(launch.turns)
        if page is None:
            page = self._pages[launch.turns] = TurnPage.create(launch.turns)
        self._of[member] = (page, launch.generation)
        page.write(member, Row(STARTING))
        return {PAGE: page.path}

    def adopted(self, living: Sequence[tuple[RankLaunch, int]]) -> None:
        """Take over ranks and processes that an earlier incarnation started; they use the pages that it created."""
        for launch, pid in living:
            if launch.turns and (page := self._pages.get(launch.turns) or TurnPage.of(pid, launch.turns)) is not None:
                self._pages[launch.turns] = page
                self._of[launch.ref] = (page, launch.generation)
        for members, page in self._pages.items():
            for member in members:
                if member not in self._of:
                    page.write(member, Row(ABSENT))

    def gone(self, start: StartRef) -> None:
        """A rank has no process any more: nobody waits for it, unless the next generation is being started already."""
        page, newest = self._of.get(start.ref, (None, -1))
        if page is not None and newest == start.generation:
            page.write(start.ref, Row(ABSENT))

    def close(self) -> None:
        """Unmap all pages."""
        for page in self._pages.values():
            page.close()
