"""Master and agent as Ray actors. Their loops run in threads of their own; calls only enqueue.

Modules that only one of them needs are imported when it begins, so the first agents start while the master still
imports.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from rolemesh.errors import PluginError
from rolemesh.runs.run import LOGS_DIR
from rolemesh_durable.api.hosting import AgentConfig, MasterConfig, Restarts, agent_start, start_agent, taken_up
from rolemesh_processes.beginning import raise_limits
from rolemesh_processes.ending import flush_files
from rolemesh_processes.guard import ResourceGuard
from rolemesh_processes.signals import handle_unless_ignored
from rolemesh_ray.launcher import RayLauncher
from rolemesh_ray.names import master_actor, remove_reservations
from rolemesh_ray.nodes import kill_actor, state_of
from rolemesh_runtime.lock import hold

if TYPE_CHECKING:
    from rolemesh_durable.api.hosting import Agent

__all__ = ["DEBUGGER", "AgentActor", "ElsewhereError", "MasterActor", "MasterWatch", "in_parts", "joined"]

DEBUGGER = "PYTHONBREAKPOINT"
"""Variable that chooses the function behind ``breakpoint()``. Ray sets its own in drivers and actors, and ranks would
inherit it."""
CRASHES_FILE = ".master-crashes"
LAST_WORD_S = 2.0
COME_UP_S = 15.0
"""Seconds that a new master may be silent before an agent has it killed."""
ANSWER_S = 2.0
"""Seconds that an agent waits for a master's answer that it is alive."""
PART_BYTES = 1 << 16
"""Size of a part of an argument in bytes. Ray passes values of up to 100 KB by value, 10 MB in all."""
STUCK_S = 30.0
"""Seconds without a turn of its loop after which a master counts as hung, and is killed."""


class ElsewhereError(Exception):
    """Ray started a job's first master on another node than the requested one."""


def in_parts(data: bytes) -> list[bytes]:
    """Return arguments that travel with an actor, and are available whenever Ray restarts it. `joined` makes `data` of
    them.

    The process that passes a single large argument would keep it, and it would be lost with that process.
    """
    packed = zlib.compress(data)
    return [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]


def joined(parts: Sequence[bytes]) -> bytes:
    """Return the data that `in_parts` divided."""
    return zlib.decompress(b"".join(parts))


class MasterActor:
    """The master. Ray restarts it when its process dies, and on another node when its node dies. The journal says how
    far it was."""

    def __init__(self, home: str, *bundle: bytes) -> None:
        """Begin on the node `home`; raise `ElsewhereError` on another one. `bundle`: see `in_parts`."""
        here = ray.get_runtime_context()
        self._again = bool(here.was_current_actor_reconstructed)
        if here.get_node_id() != home and not self._again:
            raise ElsewhereError(home)
        raise_limits()
        self._job = msgspec.msgpack.decode(joined(bundle), type=MasterConfig)
        os.environ.update(taken_up(self._job.job.environ, os.environ))
        self._self = ray.get_runtime_context().current_actor
        self._launcher = RayLauncher(self._job.job.name, self._job.job.job_id, self._self, AgentActor)
        if not self._again:
            hosts = self._job.hosts
            self._launcher.start_ahead(
                [agent_start(self._job, place, 1, hosts[place.node]) for place in self._job.places]
            )
        self._crashes = Path(self._job.job.run_dir, CRASHES_FILE)
        self._lock = hold(Path(self._job.job.run_dir))
        # What is raised here would be this actor's end for good.
        threading.Thread(target=self._run, name="master", daemon=True).start()

    def _run(self) -> None:
        guard = ResourceGuard(self._job.job.job_id, "master")
        started = time.monotonic()
        try:
            from rolemesh_durable.api.hosting import Master

            Master(self._job, self._launcher, guard.tmp, ray.util.get_node_ip_address()).run()
        except BaseException as error:
            self._failed(error, time.monotonic() - started)
        self._crashes.unlink(missing_ok=True)
        guard.close()
        # Observers may have exit handlers. Ray's own would cut this process off before Ray is asked to end it.
        atexit.unregister(ray.shutdown)
        with suppress(Exception):
            atexit._run_exitfuncs()
        flush_files()
        # Leaving by itself would be an unexpected death to Ray, which it reports on every driver's console.
        ray.kill(self._self, no_restart=True)

    def _failed(self, error: BaseException, lived_s: float) -> None:
        """Return if no other master should try; otherwise let Ray restart the master."""
        from rolemesh_durable.api.hosting import give_up
        from rolemesh_durable.stores import JournalDamagedError

        log = Path(self._job.job.run_dir, LOGS_DIR, "master.log")
        with suppress(OSError), log.open("a", encoding="utf-8", errors="replace") as out:  # its disk may be full
            out.write("".join(traceback.format_exception(error)))
        in_control = self._launcher.turns > 0
        why = str(error)
        if not isinstance(error, JournalDamagedError | PluginError) and (self._again or in_control):
            restarts = Restarts(int(self._crashes.read_text()) if self._crashes.exists() else 0)
            delay = restarts.died(lived_s=lived_s, in_control=in_control, by_signal=False)
            if delay is not None:
                with suppress(OSError):
                    self._crashes.write_text(str(restarts.crashes))
                time.sleep(delay)
                os._exit(1)
            why = f"the master failed {restarts.crashes} times in a row; the last time: {why}"
        self._launcher.stop()
        give_up(self._job, why)

    def received(self, agent: str, message: bytes) -> None:
        """Take a message from an agent."""
        self._launcher.arrived(agent, message)

    def silent_s(self) -> float:
        """Return the seconds since the master's loop last turned; 0 before its first turn, because it may wait for its
        store."""
        return self._launcher.silent_s()

    def pid(self) -> int:
        """Return the process id of the actor."""
        return os.getpid()


class AgentActor:
    """An agent. Ray does not restart it: the master starts its next incarnation on the node that it chooses."""

    def __init__(self, config: bytes, master: Any) -> None:
        raise_limits()
        decoded = msgspec.msgpack.decode(config, type=AgentConfig)
        os.environ.pop(DEBUGGER, None)
        os.environ.update(taken_up(decoded.job.environ, os.environ))
        if os.environ.get(DEBUGGER, "").startswith("ray."):  # the command was given by a program that uses Ray
            del os.environ[DEBUGGER]
        self._job = decoded.job.name
        # Between two masters it is the agents that keep the job alive.
        self._lock = hold(Path(decoded.job.run_dir))
        self._over = threading.Event()
        self._asked = threading.Event()
        self._self = ray.get_runtime_context().current_actor
        self._last: Any = None

        def send(message: bytes) -> None:
            # A master that is not there, or does not read, is told again what matters.
            with suppress(Exception):
                self._last = master.received.remote(decoded.agent, message)

        masters = MasterWatch(self._job, COME_UP_S, new=decoded.incarnation == 1)
        started: Future[Agent] = Future()
        start = partial(start_agent, decoded, send, masters.revive)
        # In its own thread, because zygotes that are not ready die with the thread that started them.
        threading.Thread(target=self._run, args=(start, started), name="agent", daemon=True).start()
        self._agent = started.result()
        if threading.current_thread() is threading.main_thread():
            handle_unless_ignored(signal.SIGTERM, lambda *_: self._agent.leave())

    def _run(self, start: Callable[[], Agent], started: Future[Agent]) -> None:
        try:
            agent = start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(agent)
        try:
            agent.run()
        except BaseException:
            # As if it had been killed: its janitor and the next incarnation see to the rest.
            with suppress(OSError):
                traceback.print_exc()
            os._exit(1)
        if self._last is not None:
            with suppress(Exception):
                ray.wait([self._last], timeout=LAST_WORD_S)
        self._over.set()
        self._asked.wait(LAST_WORD_S)
        if master_actor(self._job) is None:
            # The last ones to leave: nobody else gives back what was reserved.
            remove_reservations(self._job)
        ray.kill(self._self)

    def deliver(self, message: bytes) -> None:
        """Take a message from the master."""
        self._agent.deliver(message)

    def wait(self) -> None:
        """Return when the agent has ended. If the process dies first, Ray raises in the caller."""
        self._over.wait()
        self._asked.set()


class MasterWatch:
    """An agent's view of its master's process.

    Whether a master is new is decided by the clock of this agent, from the moment when it first saw the process. Clocks
    of nodes may differ by more than the time in which a master must come up.
    """

    def __init__(self, job: str, come_up_s: float, *, new: bool = False) -> None:
        """If `new` is true, the job's first master may still be coming up; otherwise it is up, because it started this
        agent."""
        self._job, self._come_up_s = job, come_up_s
        self._seen: tuple[int, float] = 0, 0.0
        with suppress(Exception):
            if (handle := master_actor(job)) is not None and (at := state_of(handle)).alive:
                self._seen = at.pid, time.monotonic() if new else float("-inf")

    def revive(self) -> bool:
        """Kill a hung master, so that Ray restarts it. Return whether there is a master, or will be one.

        A master is spared if it answers that it waits for its store, if Ray is already starting it, or if it is less
        than `come_up_s` seconds old. Several agents may ask at once, and on a busy machine a new master needs time
        before it contacts them.
        """
        handle = master_actor(self._job)
        if handle is None:
            return False
        at = state_of(handle)
        if not at.alive:
            return True
        if at.pid != self._seen[0]:
            self._seen = at.pid, time.monotonic()
        if time.monotonic() - self._seen[1] > self._come_up_s and _hangs(handle):
            kill_actor(handle)
        return True


def _hangs(master: Any) -> bool:
    try:
        return float(ray.get(master.silent_s.remote(), timeout=ANSWER_S)) > STUCK_S
    except ray.exceptions.GetTimeoutError:
        return True
    except ray.exceptions.RayError:
        return False  # it has just died, which Ray sees by itself
