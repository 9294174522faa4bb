"""A master in short: the real `Journal`, `Writes`, `Publication` and `LineAssembler`, whose threads are steps here."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Any

from rolemesh.api.observer import Event
from rolemesh_durable.journal.event_log import EventLog, JournalFencedError
from rolemesh_durable.master.journal import Claimed, Journal
from rolemesh_durable.master.publication import Publication
from rolemesh_durable.master.writer import Writes
from rolemesh_durable.protocol.master.own_time import OwnTime
from rolemesh_durable.protocol.metrics.merge import LineAssembler
from rolemesh_durable.stores import JournalDamagedError, StateError
from rolemesh_runtime.metrics import Metrics

if TYPE_CHECKING:
    from tests.simulation.store.world import Masters

__all__ = ["Killed", "Master", "Report"]

Report = tuple[str, int, tuple[Metrics, ...]]
"""An agent, how far its rank is, and its lines."""


class Killed(BaseException):
    """The master's process ends here."""


class Master:
    """One process."""

    def __init__(self, world: Masters) -> None:
        self.world = world
        self.frozen = False
        self.epoch = 0
        self.inbox: list[Report | int] = []
        self._time = OwnTime()
        self._now = 0.0
        self._reached: dict[str, int] = {}
        self.committed = -1
        self._lines: LineAssembler
        self.writes = Writes()
        self._writing = self._publishing = False
        self._write_at = self._publish_at = 0.0
        self.publication = Publication(world.run_dir, self, self._published)
        self.journal = Journal(
            partial(EventLog.open, world.url, world.run_dir, "job"),
            world.run_dir,
            self.writes,
            world.fresh,
            lambda: self.publication.told,
        )
        self.journal.claim(self._take_over, patient=True)

    # -------------------------------------------------------------------------------------------------- threads

    def write(self) -> None:
        """Do the next work of the journal's thread."""
        if self.world.now < self._write_at or (not self._writing and self.writes._waiting.empty()):
            return
        self._writing = self._writing or self.writes.take()
        try:
            pause = self.writes.attempt()
        except Exception:
            self._write_at = float("inf")  # `collect` raises it
            return
        self._write_at = self.world.now + pause
        self._writing = pause > 0.0

    def publish(self) -> None:
        """Do the next work of the publication's thread."""
        if not self.epoch or self.world.now < self._publish_at:
            return
        if not self._publishing:
            if not (self.publication._begins or self.publication._waiting):
                return
            self._publishing = self.publication.take()
        pause = self.publication.attempt()
        self._publish_at = self.world.now + pause
        self._publishing = pause > 0.0

    def turn(self) -> None:
        """A turn of the loop."""
        try:
            self.writes.collect()
        except JournalFencedError as error:
            if self.world.database.epoch() <= self.epoch:
                self.world.fail("nothing ends a master", str(error))
            raise Killed from error
        except JournalDamagedError as error:
            self.world.fail("the journal is what was acknowledged", str(error))
        except (StateError, OSError) as error:
            self.world.fail("nothing ends a master", str(error))
        if self.writes.busy or self.publication.full or not self.epoch:
            return
        self._now = self._time.turn(self.world.now)
        taken, self.inbox = self.inbox, []
        reports = [each for each in taken if not isinstance(each, int)]
        for step in (each for each in taken if isinstance(each, int)):
            self._lines.written(step)
            self.world.told(step)
        for agent, reached, _ in reports:
            self._reached[agent] = reached
        committed = min((self._reached.get(agent, -1) for agent in self.world.agents), default=-1)
        advanced = committed > self.committed
        self.committed = max(self.committed, committed)
        records = self.world.records(self.journal.history.seq)
        if records or advanced:
            self.journal.append(records, lambda events: self._release(events, reports), self.committed)
        elif any(lines for _, _, lines in reports):
            self.journal.verify(lambda: self._release([], reports))

    # ---------------------------------------------------------------------------------------- as `Master` does it

    def _take_over(self, found: Claimed) -> None:
        self.epoch = found.epoch
        self.world.claimed(self, found)
        self.committed = found.stored.committed
        self._lines = LineAssembler(self.world.graph, {"work": len(self.world.agents)}, found.published)
        self.publication.add(event for event in found.stored.events if event.seq > found.told)

    def _release(self, events: list[Event], reports: list[Report]) -> None:
        self.world.acknowledged(self, events, self.committed)
        self.publication.add(events)
        for agent, _, lines in reports:
            self.publication.add(self._lines.add(agent, lines, self._now, self.committed, wall=self.world.wall()))

    def _published(self, step: int, held: bool) -> None:
        if step >= 0:
            self.world.durable("metrics.jsonl", "step", step)
            self.inbox.append(step)

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Notify the observers."""
        if hook == "event":
            self.world.durable("events.jsonl", "seq", arguments["event"].seq)

    def died(self) -> None:
        """The process is over: its files are closed."""
        for file in (self.publication._events, self.publication._metrics):
            file.close()
        self.journal.close()
        # Cursors in the traceback of an error would keep the connection open, with its lock.
        del self.journal, self.writes
        gc.collect()
