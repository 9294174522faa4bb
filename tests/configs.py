"""Configurations of jobs whose machines run without their processes, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rolemesh.graph.logical import LogicalGraph
from rolemesh.placement import PlacementPlan, PlacementRequest
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.extensions import Extension
from rolemesh_durable.extensions.shipped import SHIPPED
from rolemesh_durable.protocol.job import JobConfig, PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.messages import RankLaunch

__all__ = ["in_master", "master_config"]

NO_PLUGIN = PluginUse({}, {})
OF_JOB: dict[str, Any] = {
    "name": "job",
    "job_id": "job-1",
    "steps": 10,
    "seed": 7,
    "run_dir": "",
    "base": "",
    "world_sizes": {},
    "retention": True,
    "retention_bytes": 1 << 30,
    "transports": {},
    "remote": "",
    "keys": TransportKeys("", "", "", ""),
}
OF_MASTER: dict[str, Any] = {
    "epoch": 1,
    "places": (),
    "request": PlacementRequest(()),
    "plan": PlacementPlan(),
    "hosts": {},
    "grant": 4,
    "start_timeout_s": 60.0,
    "stop_grace_s": 1.0,
    "driver": None,
    "backend": "local",
    "state": "sqlite",
    "store": NO_PLUGIN,
}


def master_config(
    graph: LogicalGraph,
    launches: dict[str, tuple[RankLaunch, ...]] | None = None,
    places: tuple[AgentPlace, ...] = (),
    **settings: Any,
) -> MasterConfig:
    """Return a job's configuration, with `settings` of `MasterConfig` and of its `JobConfig`."""
    job = {name: value for name, value in settings.items() if name in JobConfig.__struct_fields__}
    own = {name: value for name, value in settings.items() if name not in job}
    config = JobConfig(**OF_JOB | {"graph": graph} | job)
    return MasterConfig(job=config, **OF_MASTER | {"launches": launches or {}, "places": places} | own)


def in_master(extensions: Sequence[type[Extension]] = SHIPPED) -> list[Callable[[MasterParts], MasterExtension | None]]:
    """Return what makes the parts of these extensions in a master's machine."""
    return [each(None).in_master for each in extensions]
