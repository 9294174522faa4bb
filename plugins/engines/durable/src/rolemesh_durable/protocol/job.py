"""The configuration that is fixed for a whole job and travels once to the master, each agent and each rank.

Plain data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.placement import PlacementPlan, PlacementRequest
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.protocol.launcher import AgentPlace, AgentStart
from rolemesh_durable.protocol.master_config import MasterConfig, SnapshotPlan
from rolemesh_durable.protocol.messages import RankLaunch

__all__ = [
    "AgentConfig",
    "CheckUse",
    "Environment",
    "JobBundle",
    "JobConfig",
    "PluginUse",
    "RankStart",
    "RoleConfig",
    "agent_start",
    "for_rank",
]


class PluginUse(msgspec.Struct, frozen=True):
    """A plugin as the driver resolved it: `record` is a `PluginRecord`, `options` plain JSON values."""

    record: dict[str, Any]
    options: dict[str, Any]


class CheckUse(msgspec.Struct, frozen=True):
    """A check, and its name in this job."""

    name: str
    use: PluginUse


class Environment(msgspec.Struct, frozen=True):
    """The environment of a role's processes, beside their variables.

    `pip` holds lines of a requirements file with absolute paths. `working_dir` is an absolute path, or "" for the
    agent's own. `where` is the place in the job file. Lines may hold secrets.
    """

    pip: tuple[str, ...] = ()
    working_dir: str = ""
    where: str = ""


class RoleConfig(msgspec.Struct, frozen=True):
    """A role's workload and zygote, the same for all of its ranks and all of their starts.

    It holds expanded secrets, and no journal records it.
    """

    use: PluginUse
    """The workload, and its options."""
    preload: tuple[str, ...] = ()
    """The modules that its zygote imports before it forks ranks."""
    env: dict[str, str] = {}
    """The variables of its zygote."""
    environment: Environment = Environment()
    """The packages and the folder of its zygote."""

    @property
    def zygote(self) -> tuple[tuple[str, ...], dict[str, str], Environment]:
        """The kind of zygote from which its ranks are forked."""
        return self.preload, self.env, self.environment


class JobConfig(msgspec.Struct, frozen=True):
    """The configuration that every rank of a job needs. `several_nodes`: some edges need the remote transport."""

    name: str
    job_id: str
    steps: int
    seed: int
    run_dir: str
    base: str
    graph: LogicalGraph
    world_sizes: dict[str, int]
    retention: bool
    retention_bytes: int
    local: PluginUse
    remote: PluginUse
    several_nodes: bool
    keys: TransportKeys
    snapshots: SnapshotPlan = SnapshotPlan()
    stateful: tuple[str, ...] = ()
    """Roles whose workload keeps state; the others are restored by replay."""
    unrepeated: tuple[str, ...] = ()
    """Those stateful roles that are restored by their snapshots alone."""
    varying: tuple[str, ...] = ()
    """Roles whose workload may return a different value in a second call.

    So nothing replaces the values that they have sent.
    """
    trust_pickles: bool = False
    """True if ranks may read pickled objects in the snapshot from which the job was resumed."""
    plugins: dict[str, dict[str, PluginUse]] = {}
    """Plugins of declared kinds that ranks use, by kind and name."""
    roles: dict[str, RoleConfig] = {}
    """The configuration of each role; a rank gets only its own."""


class AgentConfig(msgspec.Struct, frozen=True):
    """The configuration of an agent's start.

    - `timed`: see `RankProgress.times`.
    - `serves`: other agents may fetch snapshots from this one, when its ranks move to nodes with more resources.
    - `environ`: see `JobBundle`.
    """

    agent: str
    node: str
    host: str
    lease_s: float
    job: JobConfig
    incarnation: int = 0
    warm: tuple[str, ...] = ()
    checks: tuple[CheckUse, ...] = ()
    timed: bool = False
    serves: bool = False
    environ: dict[str, str] = {}


class RankStart(msgspec.Struct, frozen=True):
    """The zygote's order to a new rank: its launch, the job, and the paths on its node.

    `mates` are the status pages of all other ranks of its collective group, if they all live on this node. `parts`
    holds values of the extensions' parts in the agent for their parts in the rank.
    """

    launch: RankLaunch
    job: JobConfig
    node: str
    host: str
    shm_dir: str
    socket_dir: str
    tmp_dir: str
    agent_address: str
    status_page: str
    mates: tuple[str, ...] = ()
    parts: dict[str, str] = {}
    timeline: int = 0


class JobBundle(msgspec.Struct, frozen=True):
    """The configuration of a master's start. It holds expanded secrets: nothing writes it to disk or to a journal."""

    outline: MasterConfig
    config: JobConfig
    job_id: str
    backend: str
    state: str
    store: PluginUse
    observers: tuple[PluginUse, ...]
    ladder: tuple[PluginUse, ...]
    diagnosers: tuple[PluginUse, ...]
    strategies: tuple[PluginUse, ...]
    request: PlacementRequest
    plan: PlacementPlan
    plugins: dict[str, dict[str, str]]
    hosts: dict[str, str]
    lease_s: float
    ray_address: str = ""
    until: dict[str, Any] = {}
    """The job file's `until`, as data."""
    checks: tuple[CheckUse, ...] = ()
    scalers: tuple[PluginUse, ...] = ()
    exports: tuple[str, ...] = ()
    """Roles whose workload has an `export`."""
    environ: dict[str, str] = {}
    """Variables of the command that started the job, for processes that do not inherit them."""


def for_rank(job: JobConfig, launch: RankLaunch) -> JobConfig:
    """Return `job` as this rank needs it: with the world sizes of its layout, and its own role."""
    sizes, roles = launch.layout.world_sizes(job.world_sizes), {launch.role: job.roles[launch.role]}
    return msgspec.structs.replace(job, world_sizes=sizes, roles=roles)


def agent_start(bundle: JobBundle, place: AgentPlace, incarnation: int, host: str) -> AgentStart:
    """Return the start of an agent. Any role's ranks may come to it later; `warm` names those that it begins with."""
    config = AgentConfig(
        agent=place.agent,
        node=place.node,
        host=host,
        lease_s=bundle.lease_s,
        job=bundle.config,
        incarnation=incarnation,
        checks=bundle.checks,
        timed=bool(bundle.scalers),
        serves=any(bundle.outline.most.values()),
        environ=bundle.environ,
        warm=tuple(dict.fromkeys(launch.role for launch in bundle.outline.launches.get(place.agent, ()))),
    )
    return AgentStart(place, incarnation, msgspec.msgpack.encode(config))
