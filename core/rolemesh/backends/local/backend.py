"""What the driver does on this machine: start a job's supervisor, and wait until its master answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rolemesh.backends.local.wire import SupervisorStart
from rolemesh.cluster import ClusterView, NodeView
from rolemesh.control import CONTROL_FILE
from rolemesh.errors import BackendError
from rolemesh.protocol.job import JobBundle
from rolemesh.runs import LOGS_DIR, RESULT_FILE

__all__ = ["LocalBackend", "await_master", "this_machine"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The supervisor forks, so nothing it imports may start threads."""


def this_machine() -> ClusterView:
    """One node with this machine's cores and, where ``/dev/nvidia*`` shows some, GPUs."""
    gpus = len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()])
    return ClusterView((NodeView("local", "127.0.0.1", float(len(os.sched_getaffinity(0))), gpus),))


class LocalBackend:
    """Starts a job on this machine. It outlives this process; the lease ends it when its owner is gone."""

    name = "local"

    def __init__(self, nodes: ClusterView | None = None) -> None:
        self._cluster = nodes or this_machine()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._run_dir = Path()

    def cluster(self) -> ClusterView:
        """The nodes to plan for."""
        return self._cluster

    def knows(self, job: str) -> bool:
        """Whether a job of this name lives here: the lock of its folder says all that this machine knows."""
        return False

    def start(self, bundle: JobBundle, lock: int = -1) -> None:
        """Start the supervisor and return when its master answers. Raises `BackendError` if it does not come up.

        `lock`: the lock of the run's folder, which the supervisor holds from the first moment to its last; -1: none.
        """
        run_dir = self._run_dir = Path(bundle.config.run_dir)
        (run_dir / LOGS_DIR).mkdir(parents=True, exist_ok=True)
        log = run_dir / LOGS_DIR / "master.log"
        with log.open("ab") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "rolemesh.backends.local", bundle.job_id],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
                pass_fds=(lock,) if lock >= 0 else (),
            )
        assert self._supervisor.stdin is not None
        start = SupervisorStart(msgspec.msgpack.encode(bundle), self._cluster)
        self._supervisor.stdin.write(msgspec.msgpack.encode(start))
        self._supervisor.stdin.close()
        await_master(run_dir, lambda: not self.alive(), log)

    def alive(self) -> bool:
        """Whether the supervisor that `start` started still runs: as long as it does, there is a master, or soon."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def close(self) -> None:
        """Wait for the supervisor to be gone, and with it master and agents."""
        if self._supervisor is not None:
            try:
                self._supervisor.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
                (self._run_dir / CONTROL_FILE).unlink(missing_ok=True)  # its master can no longer do that


def await_master(run_dir: Path, dead: Callable[[], bool], log: Path, timeout_s: float = 60.0) -> None:
    """Return when ``control.json`` (or already ``result.json``) is there; `BackendError` if the master died before."""
    deadline = time.monotonic() + timeout_s
    while not ((run_dir / CONTROL_FILE).exists() or (run_dir / RESULT_FILE).exists()):
        if dead() or time.monotonic() > deadline:
            tail = "\n".join(log.read_text().splitlines()[-15:]) if log.exists() else ""
            raise BackendError(f"the master did not come up\n{tail}", remedy=f"see {log}")
        time.sleep(0.01)
