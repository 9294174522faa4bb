"""The configuration that a master is started with, made from a checked job and its plan.

Pure but for fresh keys and the identity of this process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import OpCall
from rolemesh.graph.routes import by_demand
from rolemesh.job_file import JobFile
from rolemesh.kinds import kind_named
from rolemesh.placement import PlacementPlan
from rolemesh_checkpoint.export import can_export
from rolemesh_durable.content import own_version
from rolemesh_durable.environments import environment_of
from rolemesh_durable.extensions.edges.transports import carriers
from rolemesh_durable.extensions.turns.slots import taking_turns
from rolemesh_durable.journal.event_log import store_named
from rolemesh_durable.options import Snapshots, options_in
from rolemesh_durable.protocol.job import Environment, JobConfig, PluginUse
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.snapshot_plan import ENDLESS, SnapshotPlan
from rolemesh_processes.openmp import BASE_ENV
from rolemesh_processes.ownership import this_process
from rolemesh_runtime.carried import carried
from rolemesh_runtime.variables import role_variables

if TYPE_CHECKING:
    from rolemesh.job.prepared import Prepared
    from rolemesh.plugins.select import Selected, Selection

__all__ = ["bundle_job"]


def bundle_job(
    prepared: Prepared,
    plan: PlacementPlan,
    cluster: ClusterView,
    *,
    run_dir: str,
    backend: str,
    may_move: bool,
    owned: bool = True,
    rehearsed: bool = False,
    ray_address: str = "",
    origin: tuple[str, int] = ("", -1),
    trust_pickles: bool = False,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> MasterConfig:
    """Return the configuration of the job's master.

    - `may_move`: its ranks may come to other nodes.
    - `owned`: the job ends when its driver no longer renews its lease.
    - `rehearsed`: a rehearsal limits how far its ranks run.
    - `ranges`: the smallest and largest number of ranks of roles that have limits.
    - `environ`: see `JobConfig`.
    - `origin`: folder and step of the persisted snapshot to start from.
    - `trust_pickles`: the job may unpickle objects in that snapshot.
    """
    nodes = [node.id for node in cluster.nodes if any(slot.node == node.id for slot in plan.slots)]
    agents = {node: f"node{index}" for index, node in enumerate(nodes)}
    several = len(nodes) > 1 or (may_move and bool(prepared.job.spec.failover))
    turns = taking_turns(plan)
    return _from_job_file(prepared, owned=owned)(
        job=_job_config(
            prepared,
            run_dir=run_dir,
            several_nodes=several,
            resumes=bool(origin[0]),
            trust_pickles=trust_pickles,
            environ=environ or {},
        ),
        places=tuple(AgentPlace.of(agents[node], node, plan) for node in nodes),
        launches={agents[node]: tuple(_launches(prepared, plan, node, origin, turns)) for node in nodes},
        plan=plan,
        hosts={node.id: node.host for node in cluster.nodes},
        origin=origin[0],
        origin_step=origin[1],
        ranges=dict(ranges or {}),
        rehearsed=rehearsed,
        backend=backend,
        ray_address=ray_address,
    )


def _from_job_file(prepared: Prepared, *, owned: bool) -> Callable[..., MasterConfig]:
    """Return `MasterConfig` with those of its fields that the job file and its plugins decide."""
    job, spec, selection, request = prepared.job, prepared.job.spec, prepared.selection, prepared.request
    options = options_in(selection)
    store = store_named(options.state, job.where(("engine", "options", "state")))
    return partial(
        MasterConfig,
        request=request,
        resources={role.role: role.needs for role in request.roles},
        most={name: dict(role.resources.most) for name, role in spec.roles.items()},
        collective=tuple(name for name, s in selection.roles.items() if s.cls.group == "collective"),
        exports=tuple(name for name, s in selection.roles.items() if can_export(s.cls)),
        cold=_is_cold(selection),
        grant=options.grant,
        start_timeout_s=options.start_timeout_s,
        stop_grace_s=options.stop_grace_s,
        driver=this_process() if owned else None,
        hang_after_s=options.hang.after_s,
        metrics_every=spec.metrics.every,
        until=spec.until.model_dump(),
        state=options.state,
        store=PluginUse(msgspec.to_builtins(store), {}),
        observers=tuple(plugin_use(s) for s in selection.observers if s.cls.side == "master"),
        ladder=tuple(plugin_use(s) for s in selection.failover),
        diagnosers=tuple(plugin_use(s) for s in selection.diagnosers),
        strategies=tuple(map(plugin_use, selection.placement)),
        scalers=_declared(selection, "scalers"),
        versions=_versions(selection),
    )


def _job_config(
    prepared: Prepared,
    *,
    run_dir: str,
    several_nodes: bool,
    resumes: bool,
    trust_pickles: bool,
    environ: Mapping[str, str],
) -> JobConfig:
    """Return the configuration that every process of the job has. `resumes`: it starts from a persisted snapshot."""
    from rolemesh_dataplane.curve import new_keys

    job, spec, selection, graph = prepared.job, prepared.job.spec, prepared.selection, prepared.graph
    options = options_in(selection)
    varying = {op.role for op in graph.ops if op.streaming == "arrival" or _drops(op)}
    stateful = tuple(name for name, s in selection.roles.items() if s.cls.stateful(s.options))
    return JobConfig(
        name=spec.name,
        job_id=secrets.token_hex(4),
        steps=spec.steps or ENDLESS,
        seed=spec.seed,
        run_dir=run_dir,
        base=str(job.base),
        graph=graph,
        world_sizes={name: role.world_size for name, role in spec.roles.items()},
        retention=bool(spec.failover),
        retention_bytes=options.retention.max_bytes,
        **carriers(prepared, several_nodes=several_nodes, use=plugin_use)._asdict(),
        keys=new_keys(),
        snapshots=snapshot_plan(options.snapshots, bool(spec.failover), resumes=resumes, stateful=bool(stateful)),
        stateful=stateful,
        own_signals={name: options.stop_grace_s for name, s in selection.roles.items() if s.cls.own_signals},
        varying=tuple(n for n, s in selection.roles.items() if n in varying or s.cls.varies(s.options)),
        unrepeated=tuple(n for n in stateful if not (s := selection.roles[n]).cls.repeats(s.options)),
        trust_pickles=trust_pickles,
        plugins=_of_ranks(selection),
        roles={name: plugin_use(selected) for name, selected in selection.roles.items()},
        environments={name: _environment(job, name, selection) for name in selection.roles},
        checks=_declared(selection, "checks"),
        environ=dict(environ),
        lease_s=max(options.lease_s, 5.0),
        hold_s=max(options.start_timeout_s, options.lease_s, 5.0),
        timed=any(kind == "scalers" for kind, _ in selection.declared),
        serves=any(role.resources.most for role in spec.roles.values()),
    )


def _is_cold(selection: Selection) -> bool:
    """Return True if something measures the nodes before ranks start there."""
    return any(kind == "checks" or getattr(use.cls, "cold", False) for (kind, _), use in selection.declared.items())


def _environment(job: JobFile, name: str, selection: Selection) -> Environment:
    preload, env = role_variables(selection.roles[name], job.spec.roles[name].runtime_env.env_vars, BASE_ENV)
    ours = [module for (kind, _), s in selection.declared.items() if kind == "extensions" for module in s.cls.preload]
    return msgspec.structs.replace(environment_of(job, name), preload=(*preload, *ours), env=env)


def _drops(op: OpCall) -> bool:
    """Return True if a call leaves out rows that fail. Repeated, these rows may not fail."""
    shared = by_demand(op.returns)
    return shared is not None and shared.on_error == "drop"


def snapshot_plan(spec: Snapshots, ladder: bool, *, resumes: bool, stateful: bool = True) -> SnapshotPlan:
    """Return the plan for when ranks write their state.

    By default they write it while the job runs, if there is a failover `ladder`, the job `resumes`, or `persist_every`
    is given. Otherwise they write it after the last step, if some role is `stateful`.
    """
    wanted = ladder or resumes or spec.persist_every is not None
    enabled = wanted if spec.enabled is None else spec.enabled
    keep = spec.keep if isinstance(spec.keep, int) else {"none": 0, "last": 1}[spec.keep]
    named = {} if spec.persist_every is None else {"persist_every": spec.persist_every, "paced": False}
    every, every_s = (spec.every, None) if isinstance(spec.every, int) else (1, float(spec.every.removesuffix("s")))
    plan = SnapshotPlan(enabled, every, keep=keep, replicas=spec.replicas, every_s=every_s, paced=True)
    return msgspec.structs.replace(plan, **named, last=stateful and keep > 0 and not enabled)


def _versions(selection: Selection) -> dict[str, dict[str, str]]:
    """Return kind, distribution and version of each plugin.

    For a class of the job's own, a hash replaces the version.
    """
    found = selection.versions()
    for record in selection.records:
        if not record.distribution:
            found[record.name]["version"] = own_version(record)
    return found


def _declared(selection: Selection, kind: str) -> dict[str, PluginUse]:
    """Return the job's plugins of a declared kind, by their distinct names."""
    return {name: plugin_use(selected) for (each, name), selected in selection.declared.items() if each == kind}


def _of_ranks(selection: Selection) -> dict[str, dict[str, PluginUse]]:
    """Return the plugins of declared kinds that ranks use, by kind and name."""
    found: dict[str, dict[str, PluginUse]] = {}
    for (kind, name), selected in selection.declared.items():
        if "rank" in kind_named(kind).runs_in:
            found.setdefault(kind, {})[name] = plugin_use(selected)
    return found


def plugin_use(selected: Selected) -> PluginUse:
    """Return the plugin in the form in which it travels to other processes."""
    return PluginUse(msgspec.to_builtins(selected.record), carried(selected.options))


def _launches(
    prepared: Prepared,
    plan: PlacementPlan,
    node: str,
    origin: tuple[str, int],
    turns: Mapping[int, tuple[RankRef, ...]],
) -> list[RankLaunch]:
    spec, selection = prepared.job.spec, prepared.selection
    here = [a for a in plan.assignments if plan.slot(a.slot).node == node]
    local: dict[str, list[int]] = {}
    for a in sorted(here, key=lambda a: a.ref):
        local.setdefault(a.role, []).append(a.rank)
    launches = []
    for a in here:
        role, slot, selected = spec.roles[a.role], plan.slot(a.slot), selection.roles[a.role]
        launches.append(
            RankLaunch(
                role=a.role,
                rank=a.rank,
                world_size=role.world_size,
                local_rank=local[a.role].index(a.rank),
                local_world_size=len(local[a.role]),
                generation=0,
                cpus=_share(role.resources.cpu, slot.cpu),
                memory_gb=role.resources.memory_gb,
                gpus=tuple(index for index, _ in slot.gpus),
                share=a.share,
                peers=a.peers,
                turns=turns.get(a.slot, ()),
                collective=selected.cls.group == "collective" and role.world_size > 1,
                resume=origin[1],
                restore="disk" if origin[0] else "none",
                origin=origin[0],
                origin_step=origin[1],
            )
        )
    return launches


def _share(asked: float, slot: float) -> float:
    return min(asked, slot) if slot else asked
