"""The master's launcher on Ray: agents are named, detached actors in bundles that stay reserved until the job's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import BackendError
from rolemesh_durable.api.hosting import AgentPlace, AgentStart, Lost, Received
from rolemesh_processes.guard import remove_job
from rolemesh_ray.names import (
    NAMESPACE,
    agent_actors,
    agent_name,
    placement_groups,
    remove_reservations,
    reservation_name,
)
from rolemesh_ray.nodes import death_of, draining_nodes, free_nodes, kill_actor, node_is_gone
from rolemesh_ray.queue import Living
from rolemesh_ray.turn import room_to_grow

__all__ = ["RayLauncher"]

RESERVE_TIMEOUT_S = 30.0
LOOK_S = 0.5
END_S = 2.0
PENDING_CALLS = 1000
"""Maximum number of messages that wait for an agent; further ones are dropped."""


class _Agent:
    """An incarnation of an agent that the launcher watches."""

    def __init__(self, place: AgentPlace, incarnation: int, handle: Any) -> None:
        self.place = place
        self.incarnation = incarnation
        self.handle = handle
        self.end = handle.wait.options(concurrency_group="wait").remote()


class RayLauncher:
    """See `rolemesh_durable.protocol.launcher`. It runs in the process of the job's master, whose actor is `master`.

    `agent` is the class of the agents' actors, such as `rolemesh_ray.actors.AgentActor`.
    """

    def __init__(self, job: str, job_id: str, master: Any, agent: type) -> None:
        self._job = job
        self._job_id = job_id
        self._master = master
        self._agent = agent
        self._agents: dict[str, _Agent] = {}
        self._gone: set[str] = set()
        self._living = Living()
        self._ahead: threading.Thread | None = None
        self._failure: Exception | None = None
        self._lock, self._reserving = threading.Lock(), threading.Lock()
        self._stopped = threading.Event()
        self._received: Received | None = None
        self.turns = 0
        self._turned = 0.0

    def open(self, received: Received, lost: Lost) -> None:
        """See `Launcher`."""
        self._lost = lost
        self._received = received
        threading.Thread(target=self._watch, name="agents", daemon=True).start()

    def arrived(self, agent: str, message: bytes) -> None:
        """Take a message that an agent sent to the master's actor."""
        if self._received is not None:
            self._received(agent, message)

    def start_ahead(self, starts: Sequence[AgentStart]) -> None:
        """Start agents before the master requests them with `start`, so that both import at the same time. Returns at
        once; `start` reports errors."""

        def task() -> None:
            try:
                self._start_here(self._here(starts))
            except Exception as error:  # Ray raises all sorts
                self._failure = error

        self._ahead = threading.Thread(target=task, name="ahead", daemon=True)
        self._ahead.start()

    def start(self, starts: Sequence[AgentStart]) -> None:
        """See `Launcher`."""
        if self._ahead is not None:
            self._ahead.join()
            failure, self._ahead, self._failure = self._failure, None, None
            if failure is not None:
                raise failure
        here = self._here(starts)
        for start in starts:
            if start not in here:
                self._lost(start.place.agent, start.incarnation, f"node {start.place.node[:12]} is not there", True)
        self._start_here(here)

    def _here(self, starts: Sequence[AgentStart]) -> list[AgentStart]:
        present = {node.id for node in self.cluster().nodes}
        return [start for start in starts if start.place.node in present]

    def _start_here(self, starts: Sequence[AgentStart]) -> None:
        with self._lock:
            known = {agent: watched.incarnation for agent, watched in self._agents.items()}
        here = [start for start in starts if known.get(start.place.agent) != start.incarnation]
        others = agent_actors(self._job) if here else {}
        for start in here:
            for (agent, incarnation), handle in others.items():
                if agent == start.place.agent and incarnation < start.incarnation:
                    _end(handle)
        self.reserve([start.place for start in here])
        for start in here:
            self._start(start)

    def _start(self, start: AgentStart) -> None:
        place, name = start.place, agent_name(self._job, start.place.agent, start.incarnation)
        group, index, bundle = self._bundle(place.node)
        resources = {key: amount for key, amount in bundle.items() if key not in ("CPU", "GPU", "memory")}
        actor = ray.remote(concurrency_groups={"wait": 4})(self._agent).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory") or None,
            resources=resources,
            max_restarts=0,
            max_pending_calls=PENDING_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        )
        with self._lock:
            if self._stopped.is_set():
                return
            try:
                handle = actor.remote(start.config, self._master)
            except ValueError:  # It has been asked for before.
                handle = ray.get_actor(name, namespace=NAMESPACE)
            self._agents[place.agent] = _Agent(place, start.incarnation, handle)

    def _bundle(self, node: str) -> tuple[Any, int, dict[str, float]]:
        """Return the bundle on `node` for the agent: its group, its index in it, and its resources."""
        for name, table in sorted(placement_groups(self._job).items()):
            for index, at in table["bundles_to_node_id"].items():
                if at == node:
                    return ray.util.get_placement_group(name), int(index), dict(table["bundles"][index])
        raise BackendError(
            f"nothing is reserved on node {node[:12]}", remedy="it was lost a moment ago; see `ray status`"
        )

    def _reserve(self, places: Sequence[AgentPlace]) -> None:
        """Reserve, in one placement group, the resources that these places need beyond what the job already holds on
        their nodes."""
        groups = placement_groups(self._job)
        held = _held(groups)
        bundles, labels = [], []
        for place in places:
            asked = {{"cpu": "CPU", "gpu": "GPU"}.get(key, key): amount for key, amount in place.resources.items()}
            if gb := asked.pop("memory_gb", 0.0):
                asked["memory"] = round(gb * 1e9)
            has = held.get(place.node)
            missing = {key: amount - (has or {}).get(key, 0.0) for key, amount in asked.items()}
            bundle = {key: amount for key, amount in missing.items() if amount > 1e-9}
            if bundle or has is None:
                bundles.append(bundle or {"CPU": 0.001})
                labels.append({"ray.io/node-id": place.node})
        if not bundles:
            return
        number = max((int(name.rpartition(":")[2]) for name in groups), default=-1) + 1
        name = reservation_name(self._job, number)
        group = placement_group(bundles, "PACK", name=name, lifetime="detached", bundle_label_selector=labels)
        deadline = time.monotonic() + RESERVE_TIMEOUT_S
        while not group.wait(LOOK_S):
            if self._stopped.is_set() or time.monotonic() > deadline:
                remove_placement_group(group)
                wanted = "; ".join(
                    f"{b} on {label['ray.io/node-id'][:12]}" for b, label in zip(bundles, labels, strict=True)
                )
                raise BackendError(
                    f"Ray could not reserve the job's bundles within {RESERVE_TIMEOUT_S:g} s: {wanted}",
                    remedy="something else took the resources after the plan was made; see `ray status`",
                )

    def reserve(self, places: Sequence[AgentPlace]) -> None:
        """See `Launcher`."""
        with self._reserving:
            self._reserve(places)

    def attach(self, places: Sequence[AgentPlace], incarnations: Mapping[str, int]) -> None:
        """See `Launcher`."""
        found = agent_actors(self._job)
        for place in places:
            incarnation = incarnations[place.agent]
            handle = found.pop((place.agent, incarnation), None)
            if handle is None:
                why = _gone(death_of(agent_name(self._job, place.agent, incarnation)))
                self._tell_lost(place, incarnation, why, node_is_gone(place.node))
                continue
            with self._lock:
                self._agents[place.agent] = _Agent(place, incarnation, handle)
        for handle in found.values():
            _end(handle)

    def send(self, agent: str, incarnation: int, message: bytes) -> None:
        """See `Launcher`."""
        with self._lock:
            known = self._agents.get(agent)
        if known is not None and known.incarnation == incarnation:
            with suppress(Exception):  # It does not take messages any more: `lost` follows, or `kill`.
                known.handle.deliver.remote(message)

    def kill(self, agent: str, incarnation: int) -> None:
        """See `Launcher`."""
        with self._lock:
            known = self._agents.get(agent)
        if known is not None and known.incarnation == incarnation:
            threading.Thread(target=_end, args=(known.handle,), name="kill", daemon=True).start()

    def cluster(self, *, grows: bool = False) -> ClusterView:
        """See `Launcher`. Resources that others have taken are left out."""
        with self._lock:
            gone = set(self._gone)
        usable = free_nodes(gone, _held(placement_groups(self._job)))
        return room_to_grow(self._job, usable, self._living, gone) if grows else usable

    def leaving(self) -> Mapping[str, float]:
        """See `Launcher`. These are the nodes that the autoscaler or ``ray drain-node`` drains."""
        return draining_nodes()

    def beat(self) -> None:
        """See `Launcher`. On Ray the agents notice a master that is silent."""
        self.turns += 1
        self._turned = time.monotonic()

    def silent_s(self) -> float:
        """Return the seconds since the last call of `beat`; 0 if there was none."""
        return time.monotonic() - self._turned if self.turns else 0.0

    def lose(self, node: str) -> bool:
        """See `Launcher`. Ray's nodes cannot be taken away by a job."""
        return False

    def stop(self) -> None:
        """See `Launcher`."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            watched = list(self._agents.values())
        if watched:
            ray.wait([agent.end for agent in watched], num_returns=len(watched), timeout=END_S)
        for handle in agent_actors(self._job).values():
            _end(handle)
        remove_reservations(self._job)
        remove_job(self._job_id)

    # ---------------------------------------------------------------------------------------------------- watching

    def _watch(self) -> None:
        looked = time.monotonic()
        ended: set[Any] = set()
        while not self._stopped.is_set():
            with self._lock:
                watched = {agent.end: agent for agent in self._agents.values() if agent.end not in ended}
            if not watched:
                self._stopped.wait(LOOK_S / 5)
                continue
            ready, _ = ray.wait(list(watched), timeout=LOOK_S / 5)
            for ref in ready:
                ended.add(ref)
                self._ended(watched[ref])
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
                for ref, agent in watched.items():
                    # One that waits for its node to come back waits for ever.
                    if agent.place.node not in alive and ref not in ended:
                        ended.add(ref)
                        self._tell_lost(agent.place, agent.incarnation, "its node is not alive", True)

    def _ended(self, agent: _Agent) -> None:
        try:
            ray.get(agent.end)
            why = "the agent has ended"
        except Exception as error:
            why = _gone(" ".join(str(error).split()))
        node_lost = "node has died" in why or "node was terminated" in why or node_is_gone(agent.place.node)
        self._tell_lost(agent.place, agent.incarnation, why, node_lost)

    def _tell_lost(self, place: AgentPlace, incarnation: int, why: str, node_lost: bool) -> None:
        if node_lost:
            with self._lock:
                self._gone.add(place.node)
            why = f"node {place.node[:12]} is lost ({why})"
        if not self._stopped.is_set():
            self._lost(place.agent, incarnation, why, node_lost)


def _gone(why: str) -> str:
    """Return the words for an agent that is gone. `why` has those of Ray; "" if there are none."""
    return f"the agent's actor is gone: {why[:400]}" if why else "the agent's actor is gone"


def _held(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the resources of placement groups, by node."""
    held: dict[str, dict[str, float]] = {}
    for table in groups.values():
        for index, node in table["bundles_to_node_id"].items():
            sums = held.setdefault(node, {})
            for key, amount in table["bundles"][index].items():
                sums[key] = sums.get(key, 0.0) + amount
    return held


def _end(handle: Any) -> None:
    kill_actor(handle)
    with suppress(Exception):
        ray.kill(handle)
