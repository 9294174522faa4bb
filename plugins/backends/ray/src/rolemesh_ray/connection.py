"""The driver's side on Ray: join or start a cluster, start a job's master, and clean up after it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import BackendError, NameInUseError
from rolemesh.placement.nodes import cpu_limit, memory_limit
from rolemesh.runs.run import CONTROL_FILE, RESULT_FILE
from rolemesh_durable.api.hosting import MasterConfig, await_master
from rolemesh_durable.api.jobs import ControlClient, MasterGoneError
from rolemesh_ray.actors import DEBUGGER, ElsewhereError, MasterActor, in_parts
from rolemesh_ray.launcher import LOOK_S, RESERVE_TIMEOUT_S
from rolemesh_ray.names import NAMESPACE, agent_actors, master_actor, master_name, placement_groups, remove_reservations
from rolemesh_ray.nodes import living_nodes, preferring
from rolemesh_ray.queue import Living, Plan
from rolemesh_ray.turn import RayTurn, free_room

__all__ = ["RayConnection"]

PROBE_TIMEOUT_S = 5.0
COME_UP_S = 60.0
UV = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
"""Variable by which a user decides whether Ray starts its workers by uv, if it is started by ``uv run``."""
MEMORY_SHARE = 0.7
"""Share of the memory that Ray offers to actors; the rest is for its object store."""
LONGEST_TEMP_DIR = 40
"""Characters of a folder below which Ray's sockets have paths of at most 107 bytes, which is the system's limit."""
PENDING_CALLS = 1000
"""Maximum number of messages that wait between an agent and its master; further ones are dropped."""


def _probe(address: str) -> None:
    """Raise `OSError` at once if nothing listens at ``host:port``; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S).close()


def refuse_foreign(address: str) -> None:
    """Raise `BackendError` if another user has started this machine's node of the Ray at `address`.

    Ray would end this process, which may not open its sockets. The job's processes would be that user's, and could not
    write this user's run.
    """
    nodes = []
    with suppress(Exception):  # what is wrong, the connection says
        nodes = list(GcsClient(address=address).get_all_node_info(timeout=PROBE_TIMEOUT_S).values())
    for node in nodes:
        try:
            owner = os.stat(node.raylet_socket_name).st_uid
        except FileNotFoundError:
            continue  # of another machine
        except PermissionError:
            owner = -1
        if owner != os.geteuid():
            user = f"user {owner}" if owner >= 0 else "another user"
            what = f"{user} has started the Ray at {address}, and its processes run as that user"
            remedy = "give the job to that user: ray job submit --address http://HOST:8265; or start a Ray of your own"
            raise BackendError(what, where="--address", remedy=remedy)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Restore signal handlers and variables that `ray.init` changes. Ray's SIGTERM handler would exit at once; here
    SIGTERM ends the job in good order, as Ctrl-C does.

    Ray also sets a debugger of its own, which processes started from here would inherit. Under ``uv run`` it would
    start master and agents by uv again, in a copy of the working directory; they have the command's interpreter.
    """
    from ray._private import ray_constants

    ours, debugger = signal.getsignal(signal.SIGTERM), os.environ.get(DEBUGGER)
    by_uv, asked = ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV, UV in os.environ
    try:
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = by_uv and asked
        yield
    finally:
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = by_uv
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)
        os.environ.pop(DEBUGGER, None)
        if debugger is not None:
            os.environ[DEBUGGER] = debugger


@contextmanager
def _apart() -> Iterator[None]:
    """Start Ray's own processes in sessions of their own.

    A signal to the driver's process group, as `timeout`, systemd and batch systems send it, would end them, too, and
    the driver could not end the job in good order.
    """
    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = popen


class RayConnection:
    """A driver's connection to the Ray cluster at `address`, or to one of its own.

    If the process is already connected, as a notebook or a script may be, that connection is used and left open.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._name = ""
        self._master: Any = None
        """The id of the master's actor."""
        self._turn: RayTurn | None = None
        self._living = Living()
        self._folder = ""
        """Folder of a Ray that was started here, if the usual one has too long a path for sockets."""
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect()
        elif address not in (None, "auto", self.gcs_address):
            raise BackendError(
                f"this process is connected to the Ray at {self.gcs_address}, and not to {address}",
                where="--address",
                remedy="leave the address out, or call ray.shutdown() before",
            )

    def _connect(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # For a Ray that is started here. Its workers would get a thirtieth of a core that something else wants too.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Where memory runs short, Ray's monitor would kill master and agent, which need little: it knows no ranks. The
        # kernel ends the process that needs most.
        os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        try:
            if self._address:
                _probe(self._address)
                if found := services.canonicalize_bootstrap_address(self._address):
                    refuse_foreign(found)
            with _as_it_was(), _apart():
                ray.init(
                    address=self._address or "local",
                    namespace=NAMESPACE,
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if self._address else self._of_its_own()),
                )
        except BackendError:
            raise
        except Exception as error:  # Ray raises all sorts, an `Exception` as such where its start takes too long
            what = f"Ray is not reachable at {self._address}" if self._address else "Ray could not be started here"
            remedy = (
                "check the address (`ray status --address …`); if that Ray asks for a token, set RAY_AUTH_MODE=token; "
                "or leave --address out to start a Ray on this machine"
                if self._address
                else "try `--backend local`, which needs no Ray"
            )
            raise BackendError(
                f"{what}: {error}", where="--address" if self._address else None, remedy=remedy
            ) from error

    def _of_its_own(self) -> dict[str, Any]:
        """Return the arguments for a Ray that is started here. Ray itself looks only at the outermost control group."""
        given: dict[str, Any] = {"include_dashboard": False, "num_cpus": int(cpu_limit())}
        if (memory := memory_limit()) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            given["_memory"] = int(MEMORY_SHARE * memory)
        if len(get_default_ray_temp_dir()) > LONGEST_TEMP_DIR and "RAY_TMPDIR" not in os.environ:
            self._folder = given["_temp_dir"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        return given

    @property
    def gcs_address(self) -> str:
        """Return the address at which others can join this Ray cluster."""
        return str(ray.get_runtime_context().gcs_address)

    def cluster(self) -> ClusterView:
        """Return the living nodes with their total resources, this one first, then by id."""
        return living_nodes()

    def free(self, lost: frozenset[str]) -> ClusterView:
        """Return the living nodes without `lost`, with the free resources for which no job waits."""
        return free_room(self._living, lost)

    def queue(self, job: str, priority: int, plan: Plan, lost: frozenset[str]) -> RayTurn:
        """Join the queue of jobs that wait for room."""
        self._turn = RayTurn(job, priority, plan, lost)
        return self._turn

    def knows(self, job: str) -> bool:
        """Return whether a job of this name runs on this Ray cluster, even if it is between two masters."""
        return master_actor(job) is not None

    def start(self, bundle: MasterConfig) -> None:
        """Start the master actor on this node, and return when it answers. If this node dies, the master restarts on
        another one.

        The driver holds the lock of the run's folder until then. Afterwards master and agents hold it themselves.
        """
        run_dir = Path(bundle.job.run_dir)
        deadline = time.monotonic() + COME_UP_S
        while not self._come_up(bundle, deadline):
            # A node that has just joined is not known everywhere on this Ray.
            time.sleep(LOOK_S)
        log = run_dir / "logs" / "master.log"
        await_master(run_dir, lambda: not self.alive(), log, bundle.start_timeout_s)
        self._await_reservation(run_dir)

    def _come_up(self, bundle: MasterConfig, deadline: float) -> bool:
        """Start the master's actor. Return False if it was lost, or started on another node; then the caller tries
        again."""
        name, home = bundle.job.name, ray.get_runtime_context().get_node_id()
        actor = ray.remote(MasterActor).options(
            name=master_name(name),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            # Agents say everything again until they are heard; what was under way when a master died need not be.
            max_task_retries=0,
            max_pending_calls=PENDING_CALLS,
            **preferring(home),
        )
        try:
            master = actor.remote(home, *in_parts(msgspec.msgpack.encode(bundle)))
        except ValueError as error:
            raise NameInUseError(
                f"a job named {name!r} runs on this Ray",
                remedy=f"choose another name (name=…), or end it: rolemesh stop {name}",
            ) from error
        # From here on the name is this job's, and so is everything on Ray that carries it.
        self._name, self._master = name, master._actor_id
        try:
            ray.get(master.pid.remote(), timeout=bundle.start_timeout_s)
        except Exception as error:
            run_dir = Path(bundle.job.run_dir)
            began = any((run_dir / name).exists() for name in (CONTROL_FILE, RESULT_FILE))
            again = self.alive() and not isinstance(error, ray.exceptions.GetTimeoutError)
            if not (began or again):  # where Ray starts it again, that is waited for
                # What it raised itself it would raise again; a process or a node that is lost is not its fault.
                hopeless = "creation task" in str(error) and ElsewhereError.__name__ not in str(error)
                if not hopeless and not self.alive() and time.monotonic() < deadline:
                    return False
                raise BackendError(
                    f"the master's actor did not come up: {type(error).__name__}: {error}",
                    remedy="see what Ray says of it: `ray list actors --detail`",
                ) from error
        return True

    def _await_reservation(self, run_dir: Path) -> None:
        """Stay in the queue until the job has its reservation, and report to its master that the driver is alive."""
        deadline = time.monotonic() + RESERVE_TIMEOUT_S
        with ControlClient(run_dir, LOOK_S) as master:
            while self._turn is not None and self.alive() and time.monotonic() < deadline:
                groups = placement_groups(self._name).values()
                if groups and all(group["state"] == "CREATED" for group in groups):
                    break
                with suppress(MasterGoneError):
                    master.watch(owner=True)
                time.sleep(LOOK_S)
        self._leave_queue()

    def _leave_queue(self) -> None:
        if self._turn is not None:
            self._turn.leave()
            self._turn = None

    def alive(self) -> bool:
        """Return whether the master's actor exists, or Ray is restarting it."""
        master = master_actor(self._name)
        return master is not None and master._actor_id == self._master

    def close(self) -> None:
        """Remove everything of the job from Ray. Then leave the cluster, or end it if it was started here."""
        self._leave_queue()
        if self._name:
            deadline = time.monotonic() + 10.0
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            self._remove_leftovers()
        if self._ours:
            ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        master = master_actor(self._name)
        if master is not None and master._actor_id != self._master:
            return  # the next job of this name is here already, and ends what it does not know
        for handle in [*agent_actors(self._name).values(), *([master] if master is not None else [])]:
            with suppress(ValueError):
                ray.kill(handle, no_restart=True)
        remove_reservations(self._name)
