"""The status pages of an agent's ranks: one page each, created before the rank is forked, and read while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.messages import AgentToRank, RankLaunch, Watermarks
from rolemesh_durable.protocol.rank.page import CALLS, GRANTED, STOPPING
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.rank.status_page import Position, StatusPage
from rolemesh_processes.reserve import Reserve

__all__ = ["StatusPages"]


class StatusPages:
    """The newest status page of each rank, in the agent's folder."""

    def __init__(self, folder: Path, reserve: Reserve) -> None:
        self._folder, self._reserve = folder, reserve
        self._status_pages: dict[RankRef, tuple[StatusPage, RankLaunch]] = {}
        self.refused = 0
        """Number of connections that the transports of ranks' former generations refused."""

    def start(self, launch: RankLaunch) -> Path:
        """Create the status page of a rank before it is forked. Raises `OSError` if there is no room for it."""
        key = launch.ref
        path = self._path(launch.start)
        before = self._earlier(launch.start)
        status_page = StatusPage.create(path, self._reserve.make)
        status_page.fields[CALLS] = max(launch.calls, before.calls if before is not None else 0)
        old = self._status_pages.get(key)
        self._status_pages[key] = status_page, launch
        if old is not None:
            self.refused += old[0].read().refused
            old[0].close()
            if old[1].generation != launch.generation:
                self._path(old[1].start).unlink(missing_ok=True)
        return path

    def adopt(self, launch: RankLaunch) -> None:
        """Take over the page of a rank that an earlier incarnation started. Raises `OSError` if its page is gone."""
        path = self._path(launch.start)
        self._status_pages[launch.ref] = StatusPage(path), launch

    def read(self) -> Iterator[tuple[RankLaunch, Position]]:
        """Yield what each rank has written last."""
        for status_page, launch in self._status_pages.values():
            yield launch, status_page.read()

    def waits(self, ref: RankRef, edges: Iterable[int]) -> dict[int, int]:
        """How long a rank has waited on each of these edges: see `StatusPage.waits`."""
        return self._status_pages[ref][0].waits(edges)

    def stopping(self, ref: RankRef, patience_s: float) -> None:
        """A SIGTERM is about to come, and it is the job's end: see `Position.stopping`."""
        if ref in self._status_pages:
            self._status_pages[ref][0].fields[STOPPING] = time.monotonic_ns() + int(patience_s * 1e9)

    def tells(self, ref: RankRef, message: AgentToRank) -> None:
        """Before the agent sends `message`, write its grant to the page: the agent's next incarnation needs it."""
        if isinstance(message, Watermarks) and ref in self._status_pages:
            fields = self._status_pages[ref][0].fields
            fields[GRANTED] = max(message.granted, fields[GRANTED])

    def _earlier(self, start: StartRef) -> Position | None:
        """Return the last content of the newest page of the rank's former lives here, whichever incarnation made it."""
        pages = self._folder.glob(f"status-{start.role}-{start.rank}-*")
        numbers = [int(page.name.rpartition("-")[2]) for page in pages]
        return self._content(start._replace(generation=max(numbers))) if numbers else None

    def left(self, launch: RankLaunch) -> Position | None:
        """Return the last content of the page of a rank that an earlier incarnation started, if the page exists."""
        return self._content(launch.start)

    def _content(self, start: StartRef) -> Position | None:
        try:
            page = StatusPage.open(str(self._path(start)))
        except OSError:
            return None
        try:
            return page.read()
        finally:
            page.close()

    def pid(self, ref: RankRef) -> int:
        """The process that the rank has said it is; 0 if it has said nothing."""
        known = self._status_pages.get(ref)
        return known[0].read().pid if known is not None else 0

    def mates(self, launch: RankLaunch) -> tuple[str, ...]:
        """Return the status pages of the other ranks in a collective group, if all of them run here, because they start
        together."""
        if not launch.collective or launch.local_world_size < launch.world_size:
            return ()
        others = (rank for rank in range(launch.world_size) if rank != launch.rank)
        return tuple(str(self._path(launch.start._replace(rank=rank))) for rank in others)

    def close(self) -> None:
        """Unmap all status pages."""
        for status_page, _ in self._status_pages.values():
            status_page.close()
        self._status_pages.clear()

    def _path(self, start: StartRef) -> Path:
        return self._folder / f"status-{start.role}-{start.rank}-{start.generation}"
