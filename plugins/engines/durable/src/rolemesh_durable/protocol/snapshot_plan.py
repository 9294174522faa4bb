"""The number of a job's steps, and the steps after which its ranks write their state. Plain data."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["ENDLESS", "SnapshotPlan", "known"]

ENDLESS: Final = 1 << 60
"""The number of steps of a job without an end. No user sees this number."""
KEEP: Final = 2
"""Default number of checkpoints that stay on disk."""


def known(steps: int) -> int | None:
    """Return the number of steps of a job; None if it has no end."""
    return steps if steps < ENDLESS else None


class SnapshotPlan(msgspec.Struct, frozen=True):
    """The steps after which ranks write their state: each step s with ``(s + 1) % every == 0``, and the last one.

    Ranks may leave out some of them, for `every_s` seconds at most if it is set (`protocol.rank.owing`). With `paced`
    they may also leave out some of those that go to disk, every `persist_every` steps, and write others to disk if
    steps take long. The newest `keep` checkpoints stay on disk; 0: none after the end. With `last` ranks take no
    snapshots, but each writes its state to disk after the last step.
    """

    enabled: bool = False
    every: int = 1
    persist_every: int = 10
    keep: int = KEEP
    replicas: int = 0
    every_s: float | None = None
    paced: bool = False
    last: bool = False

    @property
    def stay(self) -> int:
        """Number of checkpoints that stay on disk while the job runs, because it may have to go back to one."""
        return self.keep or KEEP

    def due(self, step: int, steps: int) -> bool:
        """Return True if ranks write a snapshot after `step` of `steps` steps."""
        return self.enabled and ((step + 1) % self.every == 0 or step == steps - 1)

    def persisted(self, step: int, steps: int) -> bool:
        """Return True if the snapshot after `step` goes to disk."""
        return self.due(step, steps) and ((step + 1) % self.persist_every == 0 or step == steps - 1)

    def newest_before(self, step: int) -> int:
        """Return the newest step before `step` with a snapshot, if ranks leave none out; -1 if there is none."""
        return (step // self.every) * self.every - 1
