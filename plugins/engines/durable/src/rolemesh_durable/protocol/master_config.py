"""The configuration of a master's machine, and the plan for its ranks' snapshots. Plain data."""

from __future__ import annotations

from typing import Final

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.protocol.fitness import Limits
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.messages import RankLaunch

__all__ = ["ENDLESS", "MasterConfig", "ScalerPlan", "SnapshotPlan", "known"]

ENDLESS: Final = 1 << 60
"""The number of steps of a job without an end. No user sees this number."""


KEEP: Final = 2
"""Default number of checkpoints that stay on disk."""


def known(steps: int) -> int | None:
    """Return the number of steps of a job; None if it has no end."""
    return steps if steps < ENDLESS else None


class SnapshotPlan(msgspec.Struct, frozen=True):
    """The steps after which ranks write their state: each step s with ``(s + 1) % every == 0``, and the last one.

    Ranks may leave out some of them, for `every_s` seconds at most if it is set (`rolemesh_durable.protocol.owing`).
    With `paced` they may also leave out some of those that go to disk, every `persist_every` steps. The newest `keep`
    checkpoints stay on disk; 0: none after the end. With `last` ranks take no snapshots, but each writes its state to
    disk after the last step.
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

    def boundary(self, step: int) -> int:
        """Return the newest step before `step` with a snapshot, if ranks leave none out; -1 if there is none."""
        return (step // self.every) * self.every - 1


class ScalerPlan(msgspec.Struct, frozen=True):
    """A scaler of the job: see `rolemesh_durable.scalers.ScalerOptions`."""

    name: str
    period_s: float
    agree: int
    cool_down_s: float


class MasterConfig(msgspec.Struct, frozen=True):
    """A job as its master's machine sees it. Times are in seconds.

    - `launches`: the first start of each rank, by agent.
    - `origin` (a folder), `origin_step`: the persisted snapshot that the job starts from; "" and -1 for none.
    - `lease_s`: the time that an agent lives without its master.
    - `owner_lease_s`: the time that the job lives without its driver; None if it is detached.
    - `stateful`: the roles whose ranks give snapshots.
    - `collective`: the roles whose ranks form one group if there are several.
    - `ranges`: the smallest and largest number of ranks of each role that has limits.
    - `resources`: the request of each rank, by role.
    - `most`: the limit of what a failover level may give a rank, by role.
    - `metrics_every`: the number of steps that a line of metrics covers; None: `line_cuts` decides.
    - `rehearsed`: ranks run no further than the rehearsal allows, so that no injected failure comes too late.
    - `clock`: the name of the master's monotonic clock. Another machine or another boot has another clock.
    - `checks`: the limits that a node must keep before ranks start on it.
    """

    name: str
    epoch: int
    steps: int
    grant: int | None
    places: tuple[AgentPlace, ...]
    launches: dict[str, tuple[RankLaunch, ...]]
    start_timeout_s: float
    stop_grace_s: float
    owner_lease_s: float | None
    graph: LogicalGraph
    lease_s: float = 10.0
    snapshots: SnapshotPlan = SnapshotPlan()
    stateful: tuple[str, ...] = ()
    collective: tuple[str, ...] = ()
    ranges: dict[str, tuple[int, int]] = {}
    resources: dict[str, dict[str, float]] = {}
    most: dict[str, dict[str, float]] = {}
    origin: str = ""
    origin_step: int = -1
    hang_after_s: float | None = None
    stacks: bool = True
    stragglers: tuple[float, float] = (2.0, 60.0)
    metrics_every: int | None = 1
    rehearsed: bool = False
    clock: str = ""
    checks: tuple[Limits, ...] = ()
    scalers: tuple[ScalerPlan, ...] = ()
