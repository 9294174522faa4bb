"""The snapshots of a simulated rank: what they are written to, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from rolemesh_checkpoint.pace import until_shared
from rolemesh_checkpoint.persisting import outlasting
from rolemesh_durable.protocol.rank.page import SAVING

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["SimPace", "SimSnapshotStore"]


class SimPace:
    """Leaves out most snapshots. Equal ranks decide alike in all schedules."""

    def __init__(self, rank: SimRank) -> None:
        self._rank, self._step = rank, -1

    def taken(self, step: int, began: int, ended: int, failures_s: float, waited: int = 0) -> None:
        """The rank took the snapshot of `step`."""
        self._step = step

    def persists(self, step: int) -> bool:
        """One in five steps beside those of the plan, and not the same ones in all ranks: their steps differ."""
        plan = self._rank.world.scenario.plan
        own = crc32(f"{self._rank.key} disk {step}".encode()) % 5 == 0
        return (step + 1) % plan.every == 0 and (own or (step + 1) % plan.persist_every == 0)

    def is_time(self, step: int, now: int, persist: bool, pins: Sequence[int]) -> bool:
        """One in four steps, and those whose snapshots the ranks persist together."""
        key = self._rank.key
        if crc32(f"{key} {step}".encode()) % 4 == 0:
            return True
        apart = 3 ** (crc32(f"{key} apart".encode()) % 4)
        outlasts = persist and outlasting((*pins, step)) == step
        return outlasts and until_shared(step, self._rank.world.scenario.plan.persist_every, apart) == 0

    def waited(self, now: int, since: int) -> bool:
        """A rank that waits takes what it owes."""
        return True

    def ahead(self, pins: Sequence[int]) -> int:
        """One to five steps."""
        return 1 + crc32(f"{self._rank.key} {self._step}".encode()) % 5


class SimSnapshotStore:
    """Snapshots in the memory of the rank's node."""

    def __init__(self, rank: SimRank) -> None:
        self._rank, self._memory = rank, rank.agent.memory

    def steps(self) -> Sequence[int]:
        """The steps of the complete snapshots."""
        return self._memory.steps(self._rank.key)

    def pinned(self) -> Sequence[int]:
        """The steps of the snapshots that wait for the disk."""
        return self._memory.pins(self._rank.key)

    def pin(self, step: int) -> None:
        """Let the snapshot of `step` wait for the disk."""
        self._memory.snaps[self._rank.key][step].pinned = True

    def prepare(self, step: int, last: bool) -> None:
        """Write the lines of metrics up to `step` to memory."""
        if last:
            self._rank.meter.end(step)
        self._rank.meter.log_lines(step)

    def write(self, step: int, persist: bool) -> None:
        """Write the snapshot. The rank may die meanwhile."""
        rank, memory = self._rank, self._memory
        stateful = rank.mind.kind != "stateless"
        rank.op = -1
        for hook in rank.before_snapshot:
            hook()
        rank.heard = rank.heard if rank.calls.serving.behind(step) else step
        rank.world.checks.owns(rank)
        memory.make_room(rank.key)
        with rank.waits.during(SAVING):
            rank.sleep(rank.world.between(0.0, 0.01))
        rank.world.checks.owns(rank)
        memory.switch(rank.key, step, rank.mind.state if stateful else None, persist)
        rank.world.checks.snapshot(rank, step)
        rank.world.checks.held(rank, step)

    def publish(self) -> None:
        """Send the lines of metrics."""
        self._rank.meter.flush()

    def forget(self, committed: int, published: int, pins: Sequence[int]) -> None:
        """Drop records of the log."""
        self._memory.trim(self._rank.key, committed)

    def resend(self, published: int) -> None:
        """Send the lines of former generations after step `published` again."""
        self._rank.meter.resend([line for line in self._rank.former if line.step > published])
