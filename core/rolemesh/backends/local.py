"""The backend without Ray: master and agents are processes of this machine, found through sockets in private folders.

Nodes are this machine's, or emulated ones (`nodes`): each gets an agent of its own, and edges between them use the
remote transport.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import zmq

from rolemesh.agent.keeper import Keeper
from rolemesh.cluster import AgentPlace, ClusterView, NodeView
from rolemesh.control import CONTROL_FILE
from rolemesh.errors import BackendError
from rolemesh.protocol.job import AgentConfig, JobBundle
from rolemesh.runs import RESULT_FILE

__all__ = ["LocalBackend", "LocalLauncher", "this_machine"]


def this_machine() -> ClusterView:
    """One node with this machine's cores and, where ``/dev/nvidia*`` shows some, GPUs."""
    gpus = len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])
    return ClusterView((NodeView("local", "127.0.0.1", float(len(os.sched_getaffinity(0))), gpus),))


class LocalBackend:
    """Starts a master on this machine. It outlives this process; the lease ends it when its owner is gone."""

    name = "local"

    def __init__(self, nodes: ClusterView | None = None) -> None:
        self._cluster = nodes or this_machine()
        self._master: subprocess.Popen[bytes] | None = None

    def cluster(self) -> ClusterView:
        """The nodes to plan for."""
        return self._cluster

    def start(self, bundle: JobBundle) -> None:
        """Start the master and return when it answers. Raises `BackendError` if it does not come up."""
        run_dir = Path(bundle.config.run_dir)
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        log = run_dir / "logs" / "master.log"
        with log.open("ab") as out:
            self._master = subprocess.Popen(
                [sys.executable, "-m", "rolemesh.backends.local", "master", bundle.job_id],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        assert self._master.stdin is not None
        self._master.stdin.write(msgspec.msgpack.encode(bundle))
        self._master.stdin.close()
        await_master(run_dir, lambda: self._master is None or self._master.poll() is not None, log)

    def alive(self) -> bool:
        """Whether the master that `start` started still runs."""
        return self._master is not None and self._master.poll() is None

    def close(self) -> None:
        """Wait for the master to be gone; it has ended the agents before that."""
        if self._master is not None:
            try:
                self._master.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._master.kill()
                self._master.wait()


def await_master(run_dir: Path, dead: Callable[[], bool], log: Path, timeout_s: float = 60.0) -> None:
    """Return when ``control.json`` (or already ``result.json``) is there; `BackendError` if the master died before."""
    deadline = time.monotonic() + timeout_s
    while not ((run_dir / CONTROL_FILE).exists() or (run_dir / RESULT_FILE).exists()):
        if dead() or time.monotonic() > deadline:
            tail = "\n".join(log.read_text().splitlines()[-15:]) if log.exists() else ""
            raise BackendError(f"the master did not come up\n{tail}", remedy=f"see {log}")
        time.sleep(0.01)


class LocalLauncher:
    """Agents as child processes of the master; messages over one zmq ROUTER socket.

    A zmq socket belongs to one thread, so `send` hands messages to the launcher's own thread.
    """

    def __init__(self, job_id: str, socket_dir: Path, logs: Path) -> None:
        self._job = job_id
        self._address = f"ipc://{socket_dir}/agents"
        self._logs = logs
        self._context = zmq.Context()
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.set_hwm(0)
        self._outbox.bind("inproc://out")
        self._lock = threading.Lock()
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(
        self,
        places: Sequence[AgentPlace],
        configs: Mapping[str, bytes],
        received: Callable[[str, bytes], None],
        lost: Callable[[str, str], None],
    ) -> None:
        """See `rolemesh.cluster.Launcher`."""
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(received, lost, bound), name="agents", daemon=True)
        self._thread.start()
        bound.wait()
        for place in places:
            with self._lock:
                if self._stopped:
                    return
                with (self._logs / f"{place.agent}.log").open("ab") as log:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "rolemesh.backends.local", "agent", self._job, self._address],
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                self._agents[place.agent] = process
            assert process.stdin is not None
            process.stdin.write(configs[place.agent])
            process.stdin.close()

    def send(self, agent: str, message: bytes) -> None:
        """See `rolemesh.cluster.Launcher`."""
        with self._lock:
            if not self._stopped:
                self._outbox.send_multipart([agent.encode(), message])

    def stop(self) -> None:
        """See `rolemesh.cluster.Launcher`. Agents that still run are killed; their janitors clean up."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._outbox.send_multipart([b"", b""])
            agents = list(self._agents.values())
        if self._thread is not None:
            self._thread.join()
        for process in agents:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._outbox.close(linger=0)
        self._context.term()

    def _serve(
        self, received: Callable[[str, bytes], None], lost: Callable[[str, str], None], bound: threading.Event
    ) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.set_hwm(0)
        router.bind(self._address)
        inbox = self._context.socket(zmq.PULL)
        inbox.set_hwm(0)
        inbox.connect("inproc://out")
        bound.set()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(inbox, zmq.POLLIN)
        told: set[str] = set()
        while True:
            ready = dict(poller.poll(100))
            while router in ready and router.poll(0):
                agent, message = router.recv_multipart()
                received(agent.decode(), message)
            if inbox in ready:
                target, message = inbox.recv_multipart()
                if not target:
                    break
                router.send_multipart([target, message])
            for name, process in list(self._agents.items()):
                code = process.poll()
                if code is not None and name not in told and not router.poll(0):
                    told.add(name)
                    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    lost(name, f"the agent process (pid {process.pid}) {how}")
        inbox.close(linger=0)
        router.close(linger=500)


def _master_main() -> None:
    from rolemesh.master.master import Master

    bundle = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=JobBundle)
    keeper = Keeper(bundle.job_id, "master")
    try:
        launcher = LocalLauncher(bundle.job_id, keeper.tmp, Path(bundle.config.run_dir, "logs"))
        Master(bundle, launcher, keeper.tmp).run()
    finally:
        keeper.close()


def _agent_main(address: str) -> None:
    from rolemesh.agent.agent import Agent

    config = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=AgentConfig)
    context = zmq.Context()
    link = context.socket(zmq.DEALER)
    link.set_hwm(0)
    link.setsockopt(zmq.IDENTITY, config.agent.encode())
    link.connect(address)
    outbox = context.socket(zmq.PUSH)
    outbox.set_hwm(0)
    outbox.bind("inproc://out")
    agent = Agent(config, outbox.send)

    def relay() -> None:
        inbox = context.socket(zmq.PULL)
        inbox.set_hwm(0)
        inbox.connect("inproc://out")
        poller = zmq.Poller()
        poller.register(link, zmq.POLLIN)
        poller.register(inbox, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if inbox in ready:
                message = inbox.recv()
                if not message:
                    break
                link.send(message)
            if link in ready:
                agent.deliver(link.recv())
        inbox.close(linger=0)
        link.close(linger=2000)

    thread = threading.Thread(target=relay, name="link", daemon=True)
    thread.start()
    agent.run()
    outbox.send(b"")
    thread.join()
    outbox.close(linger=0)
    context.term()


if __name__ == "__main__":
    if sys.argv[1] == "master":
        _master_main()
    else:
        _agent_main(sys.argv[3])
