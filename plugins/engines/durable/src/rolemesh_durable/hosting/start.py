"""Wait for a job's first master, on any backend."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh.runs.run import CONTROL_FILE, RESULT_FILE

__all__ = ["await_master"]


LEAST_ROOM = 1 << 20
"""Bytes of free disk without which a master can write neither its journal nor its log."""


def await_master(run_dir: Path, dead: Callable[[], bool], log: Path, timeout_s: float) -> None:
    """Return when ``control.json`` (or already ``result.json``) exists; raise `BackendError` if the master died before.

    `timeout_s` is the job's `start_timeout_s`: on a busy machine a living process may need a minute to import. A full
    disk has an error of its own.
    """
    deadline = time.monotonic() + timeout_s
    while not ((run_dir / CONTROL_FILE).exists() or (run_dir / RESULT_FILE).exists()):
        if dead() or time.monotonic() > deadline:
            if (free := shutil.disk_usage(run_dir).free) < LEAST_ROOM:
                what = f"the disk with the run's folder is full ({free} bytes are free), so the master cannot start"
                raise BackendError(what, where=str(run_dir), remedy="make room there, or choose another --runs-dir")
            tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:]) if log.exists() else ""
            raise BackendError(f"the master did not come up\n{tail}", remedy=f"see {log}")
        time.sleep(0.01)
