"""The master's launcher on this machine: the supervisor forks agents, which meet the master at one stable socket."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import zmq

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import BackendError
from rolemesh_durable.api.hosting import UNREADABLE, AgentPlace, AgentStart, Dropped, Lost, Received
from rolemesh_local.forking import how_it_ended
from rolemesh_local.messages import Agents, AgentState, Beat, Exited, Kill, Link, Spawn, ToMaster
from rolemesh_local.nodes import lose_node, lost_nodes, present
from rolemesh_processes.guard import remove_agent, remove_job

__all__ = ["LocalLauncher", "agents_address"]

BEAT_S = 0.5
LOOK_MS = 100
"""Interval in milliseconds at which the launcher looks for lost nodes."""
END_S = 2.0
"""Seconds that agents have to end by themselves after the job."""


def agents_address(folder: Path) -> str:
    """Return the address at which a job's agents reach the master, whichever process it is."""
    return f"ipc://{folder}/agents"


def agent_identity(agent: str, incarnation: int) -> bytes:
    """Return the name of one incarnation of an agent on that socket."""
    return f"{agent}/{incarnation}".encode()


def parse_identity(identity: bytes) -> tuple[str, int]:
    """Return agent and incarnation of such a name. Raises `ValueError` for any other name."""
    agent, _, incarnation = identity.decode().rpartition("/")
    return agent, int(incarnation)


class LocalLauncher:
    """See `rolemesh_durable.protocol.launcher`. `link` connects to the supervisor; `folder` is the job's private one.

    A zmq socket belongs to one thread, so `send` passes messages to the launcher's own thread.
    """

    def __init__(self, job_id: str, nodes: ClusterView, folder: Path, link: Link[ToMaster]) -> None:
        self._job = job_id
        self._nodes = nodes
        self._folder = folder
        self._link = link
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.set_hwm(0)
        self._outbox.bind("inproc://out")
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._agents: dict[str, AgentState] = {}
        self._told: dict[str, int] = {}
        """Agent → newest incarnation whose loss was reported."""
        self._turns = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    def open(self, received: Received, lost: Lost) -> None:
        """See `Launcher`. Returns when the supervisor has sent the list of agents."""
        self._received, self._lost = received, lost
        known = self._link.receive()
        if not known or not isinstance(known[0], Agents):
            raise BackendError("the job's supervisor is gone", remedy="start the job again, or resume it")
        self._agents = {state.agent: state for state in known[0].agents}
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(known[1:], bound), name="agents", daemon=True)
        self._thread.start()
        bound.wait()

    def start(self, starts: Sequence[AgentStart]) -> None:
        """See `Launcher`."""
        known, lost = {node.id for node in self._nodes.nodes}, lost_nodes(self._folder)
        for start in starts:
            if start.place.node not in known:
                raise BackendError(
                    f"there is no node {start.place.node!r}", remedy=f"nodes: {', '.join(sorted(known))}"
                )
        for start in starts:
            agent, node = start.place.agent, start.place.node
            if node in lost:
                self._lost(agent, start.incarnation, f"node {node} is lost", True)
                continue
            with self._lock:
                if not self._stopped:
                    self._agents[agent] = AgentState(agent, start.incarnation, node, 0)
                    self._link.send(Spawn(agent, start.incarnation, node, start.config))

    def reserve(self, places: Sequence[AgentPlace]) -> None:
        """See `Launcher`. The resources of this machine are only counted."""

    def attach(self, places: Sequence[AgentPlace], incarnations: Mapping[str, int]) -> None:
        """See `Launcher`. Agents connect by themselves; the supervisor has sent the list of living ones."""
        with self._lock:
            known = dict(self._agents)
        wanted = {(place.agent, incarnations[place.agent]) for place in places}
        for state in known.values():
            if (state.agent, state.incarnation) not in wanted and state.status is None:
                self.kill(state.agent, state.incarnation)
        lost = lost_nodes(self._folder)
        for place in places:
            incarnation, found = incarnations[place.agent], known.get(place.agent)
            if found is None or found.incarnation != incarnation:
                self._lost(place.agent, incarnation, "it was never started", place.node in lost)
            elif found.status is not None:
                self._tell_lost(found, lost)

    def send(self, agent: str, incarnation: int, message: bytes) -> None:
        """See `Launcher`."""
        with self._lock:
            if not self._stopped:
                self._outbox.send_multipart([agent_identity(agent, incarnation), message])

    def kill(self, agent: str, incarnation: int) -> None:
        """See `Launcher`."""
        with contextlib.suppress(OSError):
            self._link.send(Kill(agent, incarnation))

    def cluster(self, *, grows: bool = False) -> ClusterView:
        """See `Launcher`."""
        return present(self._nodes, self._folder)

    def leaving(self) -> Mapping[str, float]:
        """See `Launcher`. Only agents report the end of this machine: they get SIGTERM."""
        return {}

    def beat(self) -> None:
        """See `Launcher`."""
        self._turns += 1
        if self._turns == 1:
            self._link.send(Beat(1))

    def lose(self, node: str) -> bool:
        """See `Launcher`. The only node of a job is this machine, which cannot be taken away."""
        if len(self._nodes.nodes) < 2 or node not in {n.id for n in self._nodes.nodes}:
            return False
        lose_node(self._folder, node)
        return True

    def stop(self) -> None:
        """See `Launcher`. Agents that do not end by themselves are killed."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        if self._thread is None:  # The job had ended before this master began; the supervisor kills what is left.
            remove_job(self._job)
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._living(), END_S)
            living = self._living()
        for state in living:
            self.kill(state.agent, state.incarnation)
        with self._changed:
            self._changed.wait_for(lambda: not self._living(), END_S)
        self._outbox.send_multipart([b"", b""])
        self._thread.join()
        remove_job(self._job)
        self._outbox.close(linger=0)
        self._context.term()

    def _living(self) -> list[AgentState]:
        return [state for state in self._agents.values() if state.status is None]

    def _beat(self) -> None:
        while True:
            try:
                self._link.send(Beat(self._turns, self._stopped))
            except OSError:
                return
            time.sleep(BEAT_S)

    def _serve(self, first: Iterable[ToMaster], bound: threading.Event) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.set_hwm(0)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.bind(agents_address(self._folder))
        inbox = self._context.socket(zmq.PULL)
        inbox.set_hwm(0)
        inbox.connect("inproc://out")
        bound.set()
        poller = zmq.Poller()
        for source in (router, inbox, self._link.fileno()):
            poller.register(source, zmq.POLLIN)
        dropped = Dropped("the master's socket for agents")
        exits = [message.agent for message in first if isinstance(message, Exited)]
        lost: set[str] = set()
        while True:
            ready = dict(poller.poll(LOOK_MS))
            while router in ready and router.poll(0):
                frames = router.recv_multipart()
                try:
                    identity, message = frames
                    agent, incarnation = parse_identity(identity)
                except UNREADABLE as error:
                    dropped(error)
                    continue
                if self._is_newest(agent, incarnation):
                    self._received(agent, message)
            if inbox in ready:
                target, message = inbox.recv_multipart()
                if not target:
                    break
                router.send_multipart([target, message])
            if self._link.fileno() in ready:
                messages = self._link.receive()
                if messages is None:  # The kernel kills this process with its supervisor.
                    os._exit(1)
                exits += [message.agent for message in messages if isinstance(message, Exited)]
            with contextlib.suppress(OSError):  # no descriptor left, for now: what was known holds
                lost = lost_nodes(self._folder)
            self._empty(lost)
            if not router.poll(0):  # What they said last comes before their end.
                for state in exits:
                    self._exited(state, lost)
                exits.clear()
        inbox.close(linger=0)
        router.close(linger=500)

    def _is_newest(self, agent: str, incarnation: int) -> bool:
        with self._lock:
            state = self._agents.get(agent)
            return state is not None and state.incarnation == incarnation

    def _empty(self, lost: set[str]) -> None:
        """Kill the processes on lost nodes."""
        with self._lock:
            doomed = [state for state in self._living() if state.node in lost]
        for state in doomed:
            self.kill(state.agent, state.incarnation)

    def _exited(self, state: AgentState, lost: set[str]) -> None:
        with self._changed:
            if self._agents[state.agent].incarnation == state.incarnation:
                self._agents[state.agent] = state
            self._changed.notify_all()
            if self._stopped:
                return
        self._tell_lost(state, lost)

    def _tell_lost(self, state: AgentState, lost: set[str]) -> None:
        with self._lock:
            if self._told.get(state.agent, -1) >= state.incarnation:
                return
            self._told[state.agent] = state.incarnation
        if state.node in lost:
            remove_agent(self._job, state.agent)
            self._lost(state.agent, state.incarnation, f"node {state.node} is lost", True)
            return
        how = how_it_ended(state.status or 0)
        self._lost(state.agent, state.incarnation, f"the agent process (pid {state.pid}) {how}", False)
