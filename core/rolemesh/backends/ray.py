"""The backend on Ray: a detached, named master actor per job, a detached agent actor per node in a placement group.

Ray starts and places actors, reserves bundles atomically and says when an actor or node is gone; what flows between
master and agents are actor calls that only enqueue. `ray` is imported when the backend is used.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rolemesh.agent.agent import Agent
from rolemesh.agent.keeper import Keeper
from rolemesh.backends.local import await_master
from rolemesh.cluster import AgentPlace, ClusterView, NodeView
from rolemesh.errors import BackendError, NameInUseError
from rolemesh.master.master import Master
from rolemesh.protocol.job import AgentConfig, JobBundle

__all__ = ["NAMESPACE", "RayBackend", "RayLauncher"]

NAMESPACE = "rolemesh"
RESERVE_TIMEOUT_S = 30.0
KNOCK_TIMEOUT_S = 5.0


def master_name(job: str) -> str:
    return f"rolemesh-master-{job}"


def agent_name(job: str, agent: str) -> str:
    return f"rolemesh-agent-{job}-{agent}"


def _knock(address: str) -> None:
    """Raise `OSError` at once where nobody listens at ``host:port``: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK_TIMEOUT_S).close()


class MasterActor:
    """The master in a Ray actor. The loop runs in a thread of its own; calls only enqueue."""

    def __init__(self, bundle: bytes) -> None:
        job = msgspec.msgpack.decode(bundle, type=JobBundle)
        self._keeper = Keeper(job.job_id, "master")
        self._self = ray.get_runtime_context().current_actor
        self._launcher = RayLauncher(job.config.name, self._self)
        self._master = Master(job, self._launcher, self._keeper.tmp)
        threading.Thread(target=self._run, name="master", daemon=True).start()

    def _run(self) -> None:
        try:
            self._master.run()
        finally:
            self._keeper.close()
            # Leaving by itself would be an unexpected death to Ray, which it reports on every driver's console.
            ray.kill(self._self)

    def received(self, agent: str, message: bytes) -> None:
        """An agent's message."""
        self._master.received(agent, message)

    def pid(self) -> int:
        """The process of the actor: answered when the master is up."""
        return os.getpid()


class AgentActor:
    """An agent in a Ray actor. Its loop runs in a thread that lives as long as the process."""

    def __init__(self, config: bytes, master: Any) -> None:
        decoded = msgspec.msgpack.decode(config, type=AgentConfig)
        self._name = decoded.agent
        self._over = threading.Event()
        self._last: Any = None

        def send(message: bytes) -> None:
            self._last = master.received.remote(self._name, message)

        self._agent = Agent(decoded, send)
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def _run(self) -> None:
        try:
            self._agent.run()
        finally:
            self._over.set()

    def deliver(self, message: bytes) -> None:
        """A message from the master."""
        self._agent.deliver(message)

    def wait(self) -> str:
        """Return when the agent is over; Ray raises in the caller if the process is gone before."""
        self._over.wait()
        if self._last is not None:
            try:
                ray.wait([self._last], timeout=2)
            except Exception:
                return "over; the master did not take its last word"
        return "over"


class RayLauncher:
    """Agents as actors in the bundles of one detached placement group. Lives in the master's process."""

    def __init__(self, job: str, master: Any) -> None:
        self._job = job
        self._master = master
        self._agents: dict[str, Any] = {}
        self._group: Any = None
        self._stopped = threading.Event()

    def start(
        self,
        places: Sequence[AgentPlace],
        configs: Mapping[str, bytes],
        received: Callable[[str, bytes], None],
        lost: Callable[[str, str], None],
    ) -> None:
        """See `rolemesh.cluster.Launcher`. `received` is not used: agents call the master actor."""
        self._reserve(places)
        waits: dict[Any, str] = {}
        actor = ray.remote(concurrency_groups={"wait": 1})(AgentActor)
        for index, place in enumerate(places):
            if self._stopped.is_set():
                return
            resources = dict(place.resources)
            handle = actor.options(
                name=agent_name(self._job, place.agent),
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=resources.pop("cpu", 0),
                num_gpus=resources.pop("gpu", 0),
                resources=resources,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            ).remote(configs[place.agent], self._master)
            self._agents[place.agent] = handle
            waits[handle.wait.options(concurrency_group="wait").remote()] = place.agent
        threading.Thread(target=self._watch, args=(waits, lost), name="agents", daemon=True).start()

    def _reserve(self, places: Sequence[AgentPlace]) -> None:
        bundles, labels = [], []
        for place in places:
            resources = dict(place.resources)
            bundle = {"CPU": resources.pop("cpu", 0.0), "GPU": resources.pop("gpu", 0.0), **resources}
            bundles.append({name: amount for name, amount in bundle.items() if amount > 0} or {"CPU": 0.001})
            labels.append({"ray.io/node-id": place.node})
        self._group = placement_group(
            bundles,
            strategy="PACK",
            name=f"rolemesh-{self._job}",
            lifetime="detached",
            bundle_label_selector=labels,
        )
        if not self._group.wait(RESERVE_TIMEOUT_S):
            remove_placement_group(self._group)
            self._group = None
            wanted = "; ".join(f"{p.resources} on {p.node[:12]}" for p in places)
            raise BackendError(
                f"Ray could not reserve the job's bundles within {RESERVE_TIMEOUT_S:g} s: {wanted}",
                remedy="something else took the resources after the plan was made; see `ray status`",
            )

    def _watch(self, waits: dict[Any, str], lost: Callable[[str, str], None]) -> None:
        while waits and not self._stopped.is_set():
            ready, _ = ray.wait(list(waits), timeout=0.5)
            for ref in ready:
                agent = waits.pop(ref)
                try:
                    ray.get(ref)
                except Exception as error:
                    if not self._stopped.is_set():
                        why = " ".join(str(error).split())
                        lost(agent, f"the agent's actor is gone: {why[:400]}")

    def send(self, agent: str, message: bytes) -> None:
        """See `rolemesh.cluster.Launcher`."""
        handle = self._agents.get(agent)
        if handle is not None:
            handle.deliver.remote(message)

    def stop(self) -> None:
        """See `rolemesh.cluster.Launcher`."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        for handle in self._agents.values():
            ray.kill(handle)
        if self._group is not None:
            remove_placement_group(self._group)


class RayBackend:
    """Joins the Ray at `address`, or starts one on this machine that ends with this process."""

    name = "ray"

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self._name = ""
        self._connect()

    def _connect(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            if self.address:
                _knock(self.address)
            ray.init(
                address=self.address or "local",
                namespace=NAMESPACE,
                include_dashboard=None if self.address else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            what = f"Ray is not reachable at {self.address}" if self.address else "Ray could not be started here"
            remedy = (
                "check the address (`ray status --address …`), or leave --address out to start a Ray on this machine"
                if self.address
                else "try `--backend local`, which needs no Ray"
            )
            raise BackendError(
                f"{what}: {error}", where="--address" if self.address else None, remedy=remedy
            ) from error

    @property
    def gcs_address(self) -> str:
        """The address under which others join this Ray."""
        return str(ray.get_runtime_context().gcs_address)

    def cluster(self) -> ClusterView:
        """The living nodes with what they have in all; the head's node first, then by id."""
        nodes = []
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            resources = dict(node["Resources"])
            skip = ("memory", "object_store_memory")
            custom = {
                name: amount
                for name, amount in resources.items()
                if name not in ("CPU", "GPU", *skip) and not name.startswith(("node:", "accelerator_type:"))
            }
            nodes.append(
                NodeView(
                    node["NodeID"],
                    node["NodeManagerAddress"],
                    resources.get("CPU", 0.0),
                    resources.get("GPU", 0.0),
                    custom,
                    dict(node.get("Labels", {})),
                )
            )
        here = ray.get_runtime_context().get_node_id()
        return ClusterView(tuple(sorted(nodes, key=lambda n: (n.id != here, n.id))))

    def start(self, bundle: JobBundle) -> None:
        """Start the master actor on this node and return when it answers."""
        name = bundle.config.name
        run_dir = Path(bundle.config.run_dir)
        actor = ray.remote(MasterActor).options(
            name=master_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        )
        try:
            self._master = actor.remote(msgspec.msgpack.encode(bundle))
        except ValueError as error:
            raise NameInUseError(
                f"a job named {name!r} lives on this Ray",
                remedy=f"choose another name (name=…), or end it: rolemesh stop {name}",
            ) from error
        # From here on the name is this job's, and so is everything on Ray that carries it.
        self._name = name
        try:
            ray.get(self._master.pid.remote(), timeout=60)
        except Exception as error:
            raise BackendError(f"the master actor did not come up: {error}") from error
        await_master(run_dir, lambda: not self.alive(), run_dir / "logs" / "master.log")

    def alive(self) -> bool:
        """Whether the master actor still exists."""
        try:
            ray.get_actor(master_name(self._name), namespace=NAMESPACE)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        """See that nothing of the job is left on Ray, and leave it (or end it, if it was started here)."""
        if self._name:
            deadline = time.monotonic() + 10.0
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            self._remove_leftovers()
        ray.shutdown()

    def _remove_leftovers(self) -> None:
        for entry in ray.util.list_named_actors(all_namespaces=True):
            name = entry["name"]
            ours = name == master_name(self._name) or name.startswith(agent_name(self._name, ""))
            if entry["namespace"] == NAMESPACE and ours:
                try:
                    ray.kill(ray.get_actor(name, namespace=NAMESPACE))
                except ValueError:
                    continue
        try:
            remove_placement_group(ray.util.get_placement_group(f"rolemesh-{self._name}"))
        except ValueError:
            return
