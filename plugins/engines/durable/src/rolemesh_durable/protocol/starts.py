"""The start of an agent's and of a rank's process: the job, and the names and paths of this start. Plain data."""

from __future__ import annotations

import msgspec

from rolemesh_durable.protocol.job import JobConfig
from rolemesh_durable.protocol.messages import RankLaunch

__all__ = ["AgentConfig", "RankStart", "for_rank"]


class AgentConfig(msgspec.Struct, frozen=True):
    """An agent's start. It starts the zygotes of the roles `warm` at once; any role's ranks may come to it later."""

    agent: str
    node: str
    host: str
    job: JobConfig
    incarnation: int = 0
    warm: tuple[str, ...] = ()


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


def for_rank(job: JobConfig, launch: RankLaunch) -> JobConfig:
    """Return `job` as this rank needs it: with the world sizes of its layout, and its own role."""
    sizes, roles = launch.layout.world_sizes(job.world_sizes), {launch.role: job.roles[launch.role]}
    mine = {"world_sizes": sizes, "roles": roles, "transports": {launch.role: job.transports[launch.role]}}
    return msgspec.structs.replace(job, **mine, environments={}, checks={}, environ={})
