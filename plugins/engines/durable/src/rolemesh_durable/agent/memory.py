"""The snapshots of ranks on an agent's node, in its own memory and on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_durable.agent.persister import Persister
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.starts import AgentConfig

__all__ = ["NodeMemory"]

LOG = logging.getLogger("rolemesh_durable.agent")

TIMELINE = "timeline"
"""File in an agent's folder with the timeline of the job that it is from."""


PERSIST_S = 0.25
"""Minimum seconds between two looks at a rank's pinned snapshots. Of those that wait meanwhile, one goes to disk.

It does not hold for the step at which all ranks wait (`NodeMemory.pause`).
"""


class NodeMemory:
    """Watches the snapshots of the ranks on this node, has them persisted, and reports which are intact.

    Not thread-safe. No method waits for a disk.
    """

    def __init__(self, config: AgentConfig, shm: Path, written: Callable[[], object] = lambda: None) -> None:
        """A thread calls `written` whenever `persisted` has more than before."""
        self._config, self._shm = config, shm
        self.pause = -1
        """The step for whose checkpoint all ranks wait: its snapshots go to disk at once, before all others."""
        self._plan = config.job.snapshots
        self._ranks: dict[RankRef, MemorySnapshots] = {}
        job = config.job
        where = shm, job.run_dir, job.world_sizes, self.timeline
        self._persister = Persister(*where, written) if self._plan.enabled else None
        if self._persister is not None:
            self._persister.start()
        self._running: set[RankRef] = set()
        self._covered = -1
        self._look_at: dict[RankRef, float] = {}
        self._lost: set[RankRef] = set()
        self._left = {key: self._of(key) for key in self._leftovers()}

    @property
    def warning(self) -> str:
        """Return the present problem with snapshots: in memory, or with the disk."""
        found = [self._persister.warning] if self._persister is not None else []
        if self._lost:
            names = ", ".join(map(str, sorted(self._lost)))
            found.append(
                f"snapshots of {names} are gone from memory: somebody has emptied {self._shm}, as systemd does at the "
                "logout of a user without lingering (loginctl enable-linger); the next ones are made again"
            )
        for ref in sorted(self._running):
            if (step := self._of(ref).refused) >= 0:
                found.append(
                    f"{ref} has had no room in shared memory for a snapshot since step {step}; "
                    "it is tried again, and commits wait for it"
                )
                break
        return "; ".join(filter(None, found))

    @property
    def given_up(self) -> int:
        """Return the newest step whose checkpoint cannot become complete because of this node; -1 for none."""
        return self._persister.given_up if self._persister is not None else -1

    def started(self, role: str, rank: int, resume: int, generation: int) -> None:
        """A rank runs here from now on, after step `resume`, as `generation`."""
        self.adopted(role, rank, generation)
        if self._persister is None:
            return
        self._persister.restarted(role, rank, resume, generation)
        if self._plan.persisted(resume, self._config.job.steps) and resume > self._covered:
            self._of(RankRef(role, rank)).pin(resume)  # its part of the checkpoint may have been lost

    def adopted(self, role: str, rank: int, generation: int) -> None:
        """A rank that an earlier incarnation started runs here: see `started`."""
        self._left.pop(RankRef(role, rank), None)
        if self._plan.enabled:
            self._running.add(RankRef(role, rank))
        if self._persister is not None:
            self._persister.adopted(role, rank, generation)

    def renew(self, timeline: int, make: Callable[[Path, bytes], None]) -> None:
        """The folder was removed and recreated, empty. New content belongs to `timeline`."""
        self._left.clear()
        make(self._shm / TIMELINE, str(timeline).encode())

    def left(self, role: str, rank: int) -> tuple[int, ...]:
        """A rank's process is gone. Return its snapshots; none if they cannot be read."""
        self._lost.discard((role, rank))
        self._running.discard((role, rank))
        try:
            return self._of(RankRef(role, rank)).steps() if self._plan.enabled else ()
        except (OSError, RolemeshError) as error:
            LOG.warning("what %s/%d has left in memory cannot be read: %s", role, rank, error)
            return ()

    def died(self, role: str, rank: int) -> None:
        """A rank died before its end. Persist its pinned snapshots first, if they can be read."""
        try:
            if self._persister is not None:
                self._persister.died(role, rank)
        except (OSError, RolemeshError) as error:
            LOG.warning("what %s/%d was going to have persisted cannot be read: %s", role, rank, error)

    def durable(self, role: str, rank: int, snapshot: int) -> int:
        """Return `snapshot`, the rank's newest step with a snapshot, if the snapshot is intact; otherwise -1."""
        if snapshot < 0 or not self._plan.enabled:
            return -1
        if not self._of(RankRef(role, rank)).intact(snapshot):
            if (role, rank) in self._running:  # else it may be its timeline that is void
                self._lost.add(RankRef(role, rank))
            return -1
        self._lost.discard((role, rank))
        now, due = time.monotonic(), self._look_at.get(RankRef(role, rank), 0.0)
        if self._persister is not None and (now >= due or snapshot == self.pause):
            self._look_at[RankRef(role, rank)] = now + PERSIST_S * self._persister.look(role, rank, self.pause)
        return snapshot

    def persisted(self, covered: int) -> tuple[m.Persisted, ...]:
        """Return the parts on disk of checkpoints after `covered`, the newest complete one."""
        if self._persister is None:
            return ()
        if covered > self._covered:
            self._covered = covered
            self._persister.forget(covered)
        return tuple(self._persister.results())

    def stored(self) -> tuple[m.Stored, ...]:
        """Return the snapshots that an earlier incarnation left of ranks that do not run here."""
        return tuple(m.Stored(role, rank, memory.steps()) for (role, rank), memory in self._left.items())

    @property
    def timeline(self) -> int:
        """Return the timeline of the content in memory, as of the last `forget`, also if that was another
        incarnation's."""
        try:
            return int((self._shm / TIMELINE).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def relayout(self, layout: Layout) -> None:
        """Roles have other numbers of ranks from now on."""
        if self._persister is not None:
            self._persister.relayout(layout)

    def forget(self, timeline: int, make: Callable[[Path, bytes], None]) -> None:
        """Discard everything in memory. New content belongs to `timeline`. Called when no rank runs here.

        `make(path, data)` creates a file even if shared memory is full.
        """
        for memory in {**self._left, **self._ranks}.values():
            memory.clear()
        self._left.clear()
        self._covered = -1
        if self._persister is not None:
            self._persister.forget_timeline(timeline)
        # Last, so that an agent that dies before this forgets once more.
        make(self._shm / TIMELINE, str(timeline).encode())

    def fail_next(self) -> None:
        """Rehearsal: the next write to disk fails as if the disk were full."""
        if self._persister is not None:
            self._persister.fail_next()

    def close(self) -> None:
        """Stop persisting. Files stay where they are."""
        if self._persister is not None:
            self._persister.close()
        for memory in self._ranks.values():
            memory.close()

    def _of(self, key: RankRef) -> MemorySnapshots:
        if key not in self._ranks:
            self._ranks[key] = MemorySnapshots(self._shm, *key)
        return self._ranks[key]

    def _leftovers(self) -> list[RankRef]:
        found = []
        for path in sorted(self._shm.glob("snap-*.index")) if self._plan.enabled else ():
            role, _, rank = path.name.removeprefix("snap-").removesuffix(".index").rpartition("-")
            found.append(RankRef(role, int(rank)))
        return found
