"""The master's descriptions of a job: its present status and its result. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import msgspec

from rolemesh.api.failures import describe
from rolemesh.api.observer import AgentStatus, JobStatus, RankStatus
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_STARTED
from rolemesh.graph.logical import LogicalGraph
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.extensions.relayout.records import Relayout
from rolemesh_durable.master.goodput import Account
from rolemesh_durable.master.kept import Kept, described
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.primary import primary
from rolemesh_durable.protocol.master.state import AgentRecord, JobState, RankRecord
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.rank.page import PHASES
from rolemesh_durable.protocol.snapshot_plan import known
from rolemesh_durable.runs import ControlFile
from rolemesh_processes.boot import boot_id

__all__ = ["control_of", "result_of", "status_of"]


def status_of(
    machine: MasterMachine, config: MasterConfig, started: float, pid: int, host: str, warnings: Iterable[str] = ()
) -> JobStatus:
    """The job as `rolemesh status` and the live view show it. `warnings`: the master's own; agents' are added."""
    state = machine.state
    resize = state.slice(Relayout).resize
    agents = tuple(
        AgentStatus(name, record.place.node, record.pid, _at(record)) for name, record in state.agents.items()
    )
    graph = config.job.graph
    ranks = tuple(
        _rank(role, n, state.agents[record.agent].place.node, record, graph)
        for (role, n), record in state.ranks.items()
    )
    return JobStatus(
        config.job.name,
        state.status if state.phase == "ended" else state.phase,
        machine.config.epoch,
        state.committed,
        known(config.job.steps),
        started,
        pid,
        host,
        agents,
        ranks,
        state.message,
        state.persisted,
        (*warnings, *machine.warnings()),
        state.finishing,
        resize.sizes if resize is not None else {},
        state.resources,
    )


def control_of(
    config: MasterConfig, started: float, endpoint: str, remote: str, keys: TransportKeys | None
) -> ControlFile:
    """Return the address of this process as the job's master, for ``control.json``."""
    return ControlFile(
        config.job.name,
        config.job.job_id,
        config.backend,
        endpoint,
        os.getpid(),
        started,
        config.ray_address,
        "rolemesh" if config.backend == "ray" else "",
        boot_id(),
        remote,
        keys,
    )


def _at(agent: AgentRecord) -> str:
    return "draining" if agent.leaving and agent.state == "up" else agent.state


def _rank(role: str, n: int, node: str, record: RankRecord, graph: LogicalGraph) -> RankStatus:
    generation, at = record.launch.generation, record.report
    if at is None or record.state != "running":
        return RankStatus(role, n, node, record.pid, record.state, record.finished, generation=generation)
    phase = "stopped" if at.frozen else PHASES.get(at.phase, "")
    doing = _doing(at.op, at.edge, graph) if phase != "serving" else ""
    if at.done >= 0 or at.answered:
        doing += f" {at.done}/{at.total}" if at.total else f" {max(at.done, at.answered)}"
    # A restored rank that has begun no step since then reports step -1.
    step = max(at.step, record.finished, 0)
    return RankStatus(role, n, node, record.pid, record.state, step, phase, doing, generation)


def _doing(op: int, edge: int, graph: LogicalGraph) -> str:
    if 0 <= edge < len(graph.edges):
        ends = graph.edges[edge]
        return graph.ops[ends.src if ends.dst == op else ends.dst].label
    return graph.ops[op].operator if 0 <= op < len(graph.ops) else ""


def result_of(
    machine: MasterMachine, config: MasterConfig, account: Account, wall_s: float, kept: Kept | None = None
) -> dict[str, Any]:
    """Return the content of ``result.json``. `kept` is the snapshot that stays."""
    state = machine.state
    status = state.status
    codes = {"done": EXIT_DONE, "interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}
    never_started = status == "failed" and not state.failures and state.never_started
    result: dict[str, Any] = {
        "name": config.job.name,
        "job_id": config.job.job_id,
        "status": status,
        "message": state.message,
        "exit_code": EXIT_NOT_STARTED if never_started else codes[status],
        "steps": known(config.job.steps),
        "reason": state.finishing,
        "committed_steps": state.committed + 1,
        "wall_s": round(wall_s, 3),
        "state_sha256": _digests(state),
        "plugins": config.versions,
        "run_dir": config.job.run_dir,
        "restored_step": config.origin_step,
        "persisted_step": state.persisted,
        **described(kept, state, config, machine.troubles),
        "lost_nodes": sorted({agent.place.node for agent in state.agents.values() if agent.node_lost}),
        "refused_connections": sum(state.refused.values()),
        "calls": _calls(state, config.job.graph),
        "recoveries": account.recoveries(),
        "goodput": account.goodput(wall_s),
    }
    if state.failures and status != "done":
        result["failure"] = msgspec.to_builtins(primary(state.last_failures))
        result["failures"] = [describe(failure) for failure in state.last_failures]
    return result


def _calls(state: JobState, graph: LogicalGraph) -> dict[str, int]:
    """Return the number of calls that each called role has begun to run, in all lives of its ranks."""
    callees = dict.fromkeys(callee for _, callee in graph.callers)
    return {callee: sum(rank.calls for (role, _), rank in state.ranks.items() if role == callee) for callee in callees}


def _digests(state: JobState) -> dict[str, str | None]:
    """Return per role the sha256 over its ranks' digests in rank order; None without state or before its end."""
    result: dict[str, str | None] = {}
    for role in dict.fromkeys(role for role, _ in state.ranks):
        ranks = [record for (r, _), record in sorted(state.ranks.items()) if r == role]
        if all(record.state == "done" and record.sha256 for record in ranks):
            result[role] = sha256("".join(record.sha256 for record in ranks).encode()).hexdigest()
        else:
            result[role] = None
    return result
