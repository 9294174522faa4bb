"""The driver's side on this machine: start a job's supervisor, and wait until the job's master answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.cluster import ClusterView
from rolemesh.placement.nodes import parse_nodes, this_machine
from rolemesh.runs.run import CONTROL_FILE, LOGS_DIR
from rolemesh_durable.api.hosting import MasterConfig, await_master
from rolemesh_durable.backends import Backend
from rolemesh_local.messages import SupervisorStart
from rolemesh_processes.loopback import loopback

__all__ = ["LocalBackend", "LocalOptions"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that keep libraries from starting threads, because the supervisor forks."""


class LocalOptions(BaseModel, extra="forbid"):
    """Options of the backend."""

    nodes: str | None = Field(
        default=None, description="Emulate these nodes, e.g. '2x(cpu=1)'.", json_schema_extra={"metavar": "SPEC"}
    )


class LocalBackend(Backend):
    """Starts a job on this machine. The job outlives this process. Unless it is detached, its lease ends it when its
    owner is gone."""

    Options: ClassVar[type[BaseModel]] = LocalOptions
    name: ClassVar[str] = "local"

    def __init__(self, options: LocalOptions, lost: Collection[str] = ()) -> None:
        super().__init__(options, lost)
        self._cluster = self.expected(options).without(lost)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._run_dir = Path()

    @classmethod
    def expected(cls, options: LocalOptions) -> ClusterView:
        """Return the emulated nodes, or this machine."""
        found, host = parse_nodes(options.nodes) if options.nodes else this_machine(), loopback()
        nodes = (msgspec.structs.replace(node, host=host) if node.host == "127.0.0.1" else node for node in found.nodes)
        return ClusterView(tuple(nodes))

    def cluster(self) -> ClusterView:
        """Return the nodes to plan for."""
        return self._cluster

    def start(self, bundle: MasterConfig, lock: int = -1) -> None:
        """Start the supervisor and return when its master answers. Raises `BackendError` if the master does not come
        up.

        `lock` is the lock of the run's folder, which the supervisor holds for its whole life; -1 for none.
        """
        run_dir = self._run_dir = Path(bundle.job.run_dir)
        (run_dir / LOGS_DIR).mkdir(parents=True, exist_ok=True)
        log = run_dir / LOGS_DIR / "master.log"
        with log.open("ab") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "rolemesh_local", bundle.job.job_id],
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
        await_master(run_dir, lambda: not self.alive(), log, bundle.start_timeout_s)

    def alive(self) -> bool:
        """Return whether the supervisor that `start` started is running. If it is, there is a master, or will be one
        soon."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def close(self) -> None:
        """Wait until the supervisor is gone, and with it master and agents."""
        if self._supervisor is not None:
            try:
                self._supervisor.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
                (self._run_dir / CONTROL_FILE).unlink(missing_ok=True)  # its master can no longer do that
