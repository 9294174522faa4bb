"""What the master's machine must know of a job, and when its ranks write snapshots. Plain data."""

from __future__ import annotations

from typing import Final

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.protocol.fitness import Limits
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.messages import RankLaunch

__all__ = ["ENDLESS", "MasterConfig", "ScalerPlan", "SnapshotPlan", "known"]

ENDLESS: Final = 1 << 60
"""The number of steps of a job without an end; nobody is shown it."""


KEEP: Final = 2
"""The number of checkpoints on disk that stay by default."""


def known(steps: int) -> int | None:
    """The number of steps of a job, if it has one."""
    return steps if steps < ENDLESS else None


class SnapshotPlan(msgspec.Struct, frozen=True):
    """When ranks write their state. After step s where ``(s + 1) % every == 0``, and after the last one.

    Some of those may be left out, for `every_s` seconds at most if it is given (`rolemesh_durable.protocol.owing`), and
    with `paced` also some of those that go to disk, every `persist_every` steps. The newest `keep` on disk stay, 0 for
    none after the end. With `last` ranks take no snapshots, but each writes its state to disk after the last step.
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
        """How many checkpoints stay on disk while the job runs: it may have to go back to one."""
        return self.keep or KEEP

    def due(self, step: int, steps: int) -> bool:
        """Whether ranks write a snapshot after `step` of `steps` steps."""
        return self.enabled and ((step + 1) % self.every == 0 or step == steps - 1)

    def persisted(self, step: int, steps: int) -> bool:
        """Whether the snapshot after `step` goes to disk."""
        return self.due(step, steps) and ((step + 1) % self.persist_every == 0 or step == steps - 1)

    def boundary(self, step: int) -> int:
        """The newest step before `step` after which ranks take a snapshot, if none owes one; -1 if there is none."""
        return (step // self.every) * self.every - 1


class ScalerPlan(msgspec.Struct, frozen=True):
    """A scaler of the job: see `rolemesh_durable.scalers.ScalerOptions`."""

    name: str
    period_s: float
    agree: int
    cool_down_s: float


class MasterConfig(msgspec.Struct, frozen=True):
    """A job as its master's machine sees it. `launches` maps each agent to its ranks as they are first started.

    `origin` (a folder) and `origin_step` name the persisted snapshot that the job starts from, "" and -1 if it starts
    again. Times are in seconds. `lease_s` is how long an agent lives without
    its master, `owner_lease_s` how long the job without its driver (None: it is detached). `stateful` are the roles
    that give snapshots, `collective` those whose ranks are one group if they are several, `ranges` the least and the
    most ranks of those that have limits, `resources` what each rank of a role asks for, and `most` what it may be given
    by a failover level. A line of metrics covers `metrics_every` steps; None: as many as
    `line_cuts` decides. A job that is `rehearsed` goes
    no further than whoever injects its failures lets it, so that none of them comes too late. `clock` names the
    monotonic clock that the master goes by: another machine, or another boot of the same one, has another.
    `checks` are what nodes must measure up to before ranks start there.
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
