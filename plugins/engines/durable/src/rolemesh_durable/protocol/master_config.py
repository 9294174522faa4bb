"""The configuration of a job's master, and the start of an agent that follows from it. Plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.placement import PlacementPlan, PlacementRequest
from rolemesh_durable.protocol.job import JobConfig, PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace, AgentStart
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.starts import AgentConfig

__all__ = ["MasterConfig", "agent_start"]


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A master's start: the job, and everything that the master alone needs. Times are in seconds.

    It holds expanded secrets: nothing writes it to disk or to a journal.
    """

    job: JobConfig
    epoch: int = 0
    clock: str = ""
    """The name of the master's monotonic clock. Another machine or another boot has another clock."""

    places: tuple[AgentPlace, ...]
    launches: dict[str, tuple[RankLaunch, ...]]
    """The first start of each rank, by agent."""
    request: PlacementRequest
    """The request of each rank, from which the master plans again."""
    plan: PlacementPlan
    hosts: dict[str, str]
    """The address of each node."""
    origin: str = ""
    """The folder of the persisted snapshot that the job starts from; "" for none."""
    origin_step: int = -1
    """The step of that snapshot; -1 for none."""
    collective: tuple[str, ...] = ()
    """The roles whose ranks form one group if there are several."""
    ranges: dict[str, tuple[int, int]] = {}
    """The smallest and largest number of ranks of each role that has limits."""
    resources: dict[str, dict[str, float]] = {}
    """The request of each rank, by role."""
    most: dict[str, dict[str, float]] = {}
    """The limit of what a failover level may give a rank, by role."""
    exports: tuple[str, ...] = ()
    """Roles whose workload has an `export`."""
    cold: bool = False
    """True if agents import nothing for ranks before the first one starts."""

    grant: int | None
    """Maximum number of steps that ranks may be ahead of the slowest; None for the default."""
    start_timeout_s: float
    stop_grace_s: float
    driver: tuple[str, int, int] | None
    """The process (`this_process`) without which the job ends itself after `lease_s`; None if it is detached."""
    hang_after_s: float | None = None
    metrics_every: int | None = 1
    """The number of steps that a line of metrics covers; None: `line_cuts` decides."""
    until: dict[str, Any] = {}
    """The job file's `until`, as data."""
    rehearsed: bool = False
    """True if ranks run no further than the rehearsal allows, so that no injected failure comes too late."""

    backend: str
    ray_address: str = ""
    state: str
    """The place of the journal, as the job file names it."""
    store: PluginUse
    """The store of the journal."""
    observers: tuple[PluginUse, ...] = ()
    ladder: tuple[PluginUse, ...] = ()
    diagnosers: tuple[PluginUse, ...] = ()
    strategies: tuple[PluginUse, ...] = ()
    scalers: dict[str, PluginUse] = {}
    """The scalers, by their names in this job."""
    versions: dict[str, dict[str, str]] = {}
    """The kind, distribution and version of each plugin."""


def agent_start(config: MasterConfig, place: AgentPlace, incarnation: int, host: str) -> AgentStart:
    """Return the start of an agent at `place`."""
    launches = () if config.cold else config.launches.get(place.agent, ())
    warm = tuple(dict.fromkeys(launch.role for launch in launches))
    start = AgentConfig(place.agent, place.node, host, config.job, incarnation, warm)
    return AgentStart(place, incarnation, msgspec.msgpack.encode(start))
