"""What the driver does on this machine: start a job's supervisor, and wait until its master answers."""

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
from rolemesh_durable.api.hosting import JobBundle, await_master
from rolemesh_durable.backends import Backend
from rolemesh_local.messages import SupervisorStart

__all__ = ["LocalBackend", "LocalOptions"]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The supervisor forks, so nothing it imports may start threads."""


class LocalOptions(BaseModel, extra="forbid"):
    """Options of the backend."""

    nodes: str | None = Field(
        default=None, description="Emulate these nodes, e.g. '2x(cpu=1)'.", json_schema_extra={"metavar": "SPEC"}
    )


class LocalBackend(Backend):
    """Starts a job on this machine. It outlives this process; the lease ends it when its owner is gone."""

    Options: ClassVar[type[BaseModel]] = LocalOptions
    name: ClassVar[str] = "local"

    def __init__(self, options: LocalOptions, lost: Collection[str] = ()) -> None:
        super().__init__(options, lost)
        self._cluster = self.expected(options).without(lost)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._run_dir = Path()

    @classmethod
    def expected(cls, options: LocalOptions) -> ClusterView:
        """The emulated nodes, or this machine."""
        return parse_nodes(options.nodes) if options.nodes else this_machine()

    def cluster(self) -> ClusterView:
        """The nodes to plan for."""
        return self._cluster

    def start(self, bundle: JobBundle, lock: int = -1) -> None:
        """Start the supervisor and return when its master answers. Raises `BackendError` if it does not come up.

        `lock`: the lock of the run's folder, which the supervisor holds from the first moment to its last; -1: none.
        """
        run_dir = self._run_dir = Path(bundle.config.run_dir)
        (run_dir / LOGS_DIR).mkdir(parents=True, exist_ok=True)
        log = run_dir / LOGS_DIR / "master.log"
        with log.open("ab") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "rolemesh_local", bundle.job_id],
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
        await_master(run_dir, lambda: not self.alive(), log, bundle.outline.start_timeout_s)

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
