"""Ray's nodes for the planner, the check for lost nodes, and the kill of a process on a node."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rolemesh.api.cluster import ClusterView, NodeView

__all__ = [
    "ActorState",
    "death_of",
    "draining_nodes",
    "free_nodes",
    "kill_actor",
    "living_nodes",
    "node_is_gone",
    "preferring",
    "state_of",
]

PROBE_TIMEOUT_S = 1.0
SLAY_TIMEOUT_S = 5.0
NOBODY: Mapping[str, Mapping[str, float]] = {}
NOT_CUSTOM = ("CPU", "GPU", "memory", "object_store_memory")


def living_nodes(gone: Collection[str] = ()) -> ClusterView:
    """Return the living nodes with their total resources, without `gone`; the one of this process first, then by id."""
    nodes = []
    for node in ray.nodes():
        if not node["Alive"] or node["NodeID"] in gone:
            continue
        resources = dict(node["Resources"])
        custom = {
            name: amount
            for name, amount in resources.items()
            if name not in NOT_CUSTOM and not name.startswith(("node:", "accelerator_type:"))
        }
        custom["memory_gb"] = resources.get("memory", 0.0) / 1e9
        cpu, gpu = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        nodes.append(
            NodeView(node["NodeID"], node["NodeManagerAddress"], cpu, gpu, custom, dict(node.get("Labels", {})))
        )
    here = ray.get_runtime_context().get_node_id()
    return ClusterView(tuple(sorted(nodes, key=lambda node: (node.id != here, node.id))))


def free_nodes(gone: Collection[str] = (), held: Mapping[str, Mapping[str, float]] = NOBODY) -> ClusterView:
    """Return the living nodes without `gone`, with their free resources and those that the requesting job has `held`.

    GPUs that are partly taken do not count.
    """
    from ray._private import state

    left = state.state.available_resources_per_node()
    nodes = []
    for node in living_nodes(gone).nodes:
        has, own = ({**of.get(node.id, {})} for of in (left, held))
        for of in (has, own):
            of["memory_gb"] = of.get("memory", 0.0) / 1e9
        most = {"CPU": node.cpu, "GPU": node.gpu, **node.custom}  # Ray tells late what has just been reserved
        free = {name: min(limit, has.get(name, 0.0) + own.get(name, 0.0)) for name, limit in most.items()}
        custom = {name: free[name] for name in node.custom}
        nodes.append(msgspec.structs.replace(node, cpu=free["CPU"], gpu=int(free["GPU"] + 1e-9), custom=custom))
    return ClusterView(tuple(nodes))


def draining_nodes() -> dict[str, float]:
    """Return the nodes that Ray drains, with the seconds until they go; 0 for no deadline. Ray has no public API for
    this."""
    from ray._private import state

    now_ms = time.time() * 1e3
    return {
        node: max(1.0, (deadline_ms - now_ms) / 1e3) if deadline_ms else 0.0
        for node, deadline_ms in state.state.get_draining_nodes().items()
    }


def node_is_gone(node_id: str) -> bool:
    """Return whether Ray reports the loss, or the raylet refuses connections. Ray's own health check takes seconds."""
    node = next((node for node in ray.nodes() if node["NodeID"] == node_id), None)
    if node is None or not node["Alive"]:
        return True
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), PROBE_TIMEOUT_S).close()
    except OSError:
        return True
    return False


def preferring(node: str) -> dict[str, Any]:
    """Return options with which an actor starts on `node` every time, and on another node once that one is gone.

    Ray ignores the soft affinity of an actor without resources: it takes any node.
    """
    return {"label_selector": {"ray.io/node-id": node}, "fallback_strategy": [{"label_selector": {}}]}


class ActorState:
    """Ray's record of an actor's process."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.alive = table.get("State") == "ALIVE"
        self.pid = int(table.get("Pid") or 0)
        self.node = str(table.get("Address", {}).get("NodeID", ""))


def state_of(handle: Any) -> ActorState:
    """Look an actor up. Ray's public API for its pid needs the dashboard, which may be missing."""
    from ray._private import state

    return ActorState(state.actors(handle._actor_id.hex()) or {})


def death_of(name: str) -> str:
    """Return Ray's words for the death of the last actor of this name; "" if Ray has none."""
    from ray._private import state

    dead = [each for each in state.state.actor_table(None, actor_state_name="DEAD").values() if each["Name"] == name]
    if not dead:
        return ""
    cause = max(dead, key=lambda each: each["EndTime"])["DeathCause"]
    context = getattr(cause, cause.WhichOneof("context") or "", None)
    return " ".join(str(getattr(context, "error_message", "")).split())


def kill_actor(handle: Any) -> None:
    """Send SIGKILL to the actor's process, even if it is stopped (`ray.kill` would give it 5 seconds)."""
    at = state_of(handle)
    if not at.alive or not at.pid:
        return
    if at.node == ray.get_runtime_context().get_node_id():
        _sigkill(at.pid)
        return
    there = NodeAffinitySchedulingStrategy(at.node, soft=False)
    with suppress(Exception):  # The node may be gone, and the process with it.
        ray.get(
            ray.remote(_sigkill).options(num_cpus=0, scheduling_strategy=there).remote(at.pid), timeout=SLAY_TIMEOUT_S
        )


def _sigkill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
