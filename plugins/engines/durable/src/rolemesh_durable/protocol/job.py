"""The configuration that is fixed for a whole job, and travels once to the master, each agent and each rank.

Three structs hold the values of the job file in the engine: `JobConfig` for every process, `MasterConfig` for the
master, and `RankLaunch` for one start of a rank. Each value is in one of them. Plain data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.protocol.rank.shape import JobShape

__all__ = ["Environment", "JobConfig", "PluginUse"]


class PluginUse(msgspec.Struct, frozen=True):
    """A plugin as the driver resolved it: `record` is a `PluginRecord`, `options` plain JSON values."""

    record: dict[str, Any]
    options: dict[str, Any]


class Environment(msgspec.Struct, frozen=True):
    """The processes of a role, the same for all of its ranks and all of their starts. It may hold secrets."""

    pip: tuple[str, ...] = ()
    """Lines of a requirements file with absolute paths."""
    working_dir: str = ""
    """The absolute path of their folder; "" for the agent's own."""
    where: str = ""
    """The place in the job file."""
    preload: tuple[str, ...] = ()
    """The modules that their zygote imports before it forks ranks."""
    env: dict[str, str] = {}
    """Their variables."""

    @property
    def zygote(self) -> tuple[tuple[str, ...], dict[str, str], Environment]:
        """The kind of zygote from which the role's ranks are forked."""
        return self.preload, self.env, self


class JobConfig(JobShape, frozen=True, kw_only=True):
    """The part of a job's configuration that its agents and ranks need, too.

    It holds expanded secrets: nothing writes it to disk or to a journal.
    """

    name: str
    job_id: str
    seed: int
    run_dir: str
    base: str
    """The folder of the job file."""
    transports: dict[str, dict[str, PluginUse]]
    """The transports of each role by their names in this job; a rank gets only its own. ``local`` is within a node."""
    remote: str
    """The transport between nodes; "" in a job of one node."""
    edges: dict[int, tuple[str, str]] = msgspec.field(default_factory=dict)
    """The transports of edges that have their own, by the edge's number: within a node, and between nodes."""
    keys: TransportKeys
    stateful: tuple[str, ...] = ()
    """Roles whose workload keeps state; the others are restored by replay."""
    own_signals: dict[str, float] = msgspec.field(default_factory=dict)
    """Roles whose own code handles signals, with the seconds that they have to end: see `Workload.own_signals`."""
    trust_pickles: bool = False
    """True if ranks may read pickled objects in the snapshot from which the job was resumed."""
    plugins: dict[str, dict[str, PluginUse]] = msgspec.field(default_factory=dict)
    """Plugins of declared kinds that ranks use, by kind and name."""
    roles: dict[str, PluginUse] = msgspec.field(default_factory=dict)
    """The workload of each role; a rank gets only its own."""
    environments: dict[str, Environment] = msgspec.field(default_factory=dict)
    """The processes of each role. No rank gets them."""
    checks: dict[str, PluginUse] = msgspec.field(default_factory=dict)
    """The checks that each agent makes, by their names in this job. No rank gets them."""
    environ: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables of the command that started the job, for processes that do not inherit them. No rank gets them."""
    lease_s: float = 10.0
    """The time that an agent lives without its master, in seconds."""
    hold_s: float = 600.0
    """Maximum time that ranks live without their agent, while its next incarnation starts, in seconds."""
    timed: bool = False
    """True if agents report the times of their ranks' operators (`RankProgress.times`)."""
    serves: bool = False
    """True if agents fetch snapshots from one another, because a failover level may move ranks to other nodes."""
