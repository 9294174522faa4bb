"""Backends that each do one thing wrong, and the standard tests that find it. All are the backend `local` otherwise.

Their supervisors run `run`, so that a class can break them, too. A backend that starts an agent beside one that stands
still is not among them: the guard of each agent kills its predecessor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from rolemesh.api.cluster import ClusterView
from rolemesh_durable.api.hosting import MasterConfig
from rolemesh_local import LocalBackend
from rolemesh_local import __main__ as supervising
from rolemesh_local.backend import LocalOptions
from rolemesh_local.messages import AgentState, Link, SupervisorStart, ToMaster
from rolemesh_local.supervisor import Supervisor, _Master
from rolemesh_processes.beginning import die_with_parent
from rolemesh_runtime.lock import hold

__all__ = ["BROKEN", "Sound", "run"]


class Sound(LocalBackend):
    """Does everything right."""

    name = "sound"

    def start(self, bundle: MasterConfig, lock: int = -1) -> None:
        popen = subprocess.Popen

        def own(command: list[str], **settings: Any) -> Any:
            code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run; run({type(self).__name__!r})"
            return popen([sys.executable, "-c", code], **self.popen(settings))

        with patch("rolemesh_local.backend.subprocess.Popen", own):
            super().start(bundle, lock)

    def popen(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of the supervisor's process."""
        return settings

    @classmethod
    def supervise(cls) -> None:
        """Break the supervisor's process."""


def run(name: str) -> None:
    """Be the supervisor of the backend of this class."""
    globals()[name].supervise()
    sys.exit(supervising.main())


# ----------------------------------------------------------------------------------------------- the starter's process


class Restless(Sound):
    """Gives its nodes other names each time."""

    name = "restless"
    numbers = count()

    def cluster(self) -> ClusterView:
        return ClusterView(tuple(replace(node, id=f"node-{next(self.numbers)}") for node in super().cluster().nodes))


class Eager(Sound):
    """Is always alive."""

    name = "eager"

    def alive(self) -> bool:
        return True


class Knowing(Sound):
    """Knows every job."""

    name = "knowing"

    def knows(self, job: str) -> bool:
        return True


class Stubborn(Sound):
    """Uses nodes again that a job has lost."""

    name = "stubborn"

    def __init__(self, options: LocalOptions, lost: Collection[str] = ()) -> None:
        super().__init__(options)


class Misnamed(Sound):
    """Has the name of another backend."""

    name = "local"


class Quick(Sound):
    """Waits for no master."""

    name = "quick"

    def start(self, bundle: MasterConfig, lock: int = -1) -> None:
        with patch("rolemesh_local.backend.await_master"):
            super().start(bundle, lock)


class Unlocked(Sound):
    """Passes no lock on."""

    name = "unlocked"

    def start(self, bundle: MasterConfig, lock: int = -1) -> None:
        super().start(bundle, -1)


class Bare(Sound):
    """Starts processes with few variables."""

    name = "bare"

    def popen(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings | {"env": {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}}


class Helped(Sound):
    """Has a helper that nothing ends."""

    name = "helped"

    def start(self, bundle: MasterConfig, lock: int = -1) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        super().start(bundle, lock)


# -------------------------------------------------------------------------------------------- the supervisor's process


class MasterOnly(Sound):
    """Lets only the master hold the lock."""

    name = "master-only"

    @classmethod
    def supervise(cls) -> None:
        run_master = supervising.run_master

        def holding(start: SupervisorStart, link: Link[ToMaster], folder: Path, attempt: int) -> int:
            import msgspec

            held = hold(Path(msgspec.msgpack.decode(start.bundle, type=MasterConfig).job.run_dir))
            assert held is not None
            return run_master(start, link, folder, attempt)

        supervising.run_master = holding
        for fd in range(3, 64):
            if os.path.exists(path := f"/proc/self/fd/{fd}") and os.readlink(path).endswith(".alive"):
                os.close(fd)


class Abandoning(Sound):
    """Starts no second master, and takes the signal that ended the first for a good end."""

    name = "abandoning"

    @classmethod
    def supervise(cls) -> None:
        gone = Supervisor._master_gone
        Supervisor._master_gone = lambda self, master, status: gone(self, master, 0)  # type: ignore[method-assign]


class Sweeping(Sound):
    """Ends the agents with their master."""

    name = "sweeping"

    @classmethod
    def supervise(cls) -> None:
        gone = Supervisor._master_gone

        def sweeping(self: Supervisor, master: _Master, status: int) -> bool | None:
            for state in self._agents.values():
                if status and state.pid and state.status is None:
                    os.kill(state.pid, 9)
            return gone(self, master, status)

        Supervisor._master_gone = sweeping  # type: ignore[method-assign]


class Silent(Sound):
    """Reports the end of no agent."""

    name = "silent"

    @classmethod
    def supervise(cls) -> None:
        def gone(self: Supervisor, state: AgentState, status: int) -> None:
            if self._agents.get(state.agent) == state:
                self._agents[state.agent] = replace(state, status=status)

        Supervisor._agent_gone = gone  # type: ignore[method-assign]


class Parental(Sound):
    """Ends every job with its starter."""

    name = "parental"

    @classmethod
    def supervise(cls) -> None:
        die_with_parent(os.getppid())


NODES = "test_its_nodes_can_be_told_apart_and_have_something"
LEAVES, MASTER = "test_a_job_runs_there_and_leaves_nothing", "test_a_master_that_is_killed_is_there_again"
AGENT = "test_an_agent_that_is_killed_has_a_successor_and_no_rank_restarts"
STARTER = "test_a_killed_starter_leaves_nothing_and_takes_no_detached_job_along"
BROKEN: dict[type[Sound], set[str]] = {
    Restless: {NODES},
    Eager: {NODES},
    Knowing: {NODES},
    Stubborn: {"test_a_lost_node_is_not_used_again"},
    Misnamed: {"test_its_name_is_the_one_that_a_user_selects"},
    Quick: {LEAVES},
    Unlocked: {LEAVES},
    Bare: {LEAVES},
    Helped: {LEAVES, STARTER},
    MasterOnly: {MASTER},
    Abandoning: {MASTER},
    Sweeping: {MASTER},
    Silent: {AGENT},
    Parental: {STARTER},
}
