"""The pages on which the ranks of a node's slots see whose turn it is. The agent makes them, and says who is gone."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rolemesh.agent.reserve import Reserve
from rolemesh.protocol.messages import RankLaunch
from rolemesh.protocol.turns import ABSENT, STARTING, Row
from rolemesh.rank.turn_page import TurnPage

__all__ = ["TurnPages"]


class TurnPages:
    """One page per slot whose ranks take turns, in the agent's folder."""

    def __init__(self, folder: Path, reserve: Reserve) -> None:
        self._folder, self._reserve = folder, reserve
        for left in folder.glob("turns-*"):
            left.unlink()
        self._pages: dict[Path, TurnPage] = {}
        self._of: dict[tuple[str, int], tuple[TurnPage, int]] = {}

    def starting(self, launch: RankLaunch) -> str:
        """A rank is about to be forked: the others wait for it. Returns the page's path, "" if it takes no turns.

        Raises `OSError` if there is no room for the page.
        """
        member = (launch.role, launch.rank)
        if not launch.turns:
            self._of.pop(member, None)
            return ""
        path = self._folder / f"turns-{hashlib.blake2b(repr(launch.turns).encode(), digest_size=8).hexdigest()}"
        if path not in self._pages or not path.exists():
            self._pages[path] = TurnPage.create(path, launch.turns, self._reserve.make)
        self._of[member] = (self._pages[path], launch.generation)
        self._pages[path].write(member, Row(STARTING))
        return str(path)

    def gone(self, role: str, rank: int, generation: int) -> None:
        """A rank has no process any more: nobody waits for it, unless the next generation is being started already."""
        page, newest = self._of.get((role, rank), (None, -1))
        if page is not None and newest == generation:
            page.write((role, rank), Row(ABSENT))

    def close(self) -> None:
        """Unmap all pages."""
        for page in self._pages.values():
            page.close()
