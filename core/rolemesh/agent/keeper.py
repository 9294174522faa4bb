"""Starts a janitor for a process: private folders that disappear with their owner, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rolemesh.agent import janitor

__all__ = ["MARKER", "Keeper"]

MARKER = "ROLEMESH_JOB"
"""Environment variable that marks every process of one job on one agent."""


class Keeper:
    """Private folders (mode 0700) and processes that share their owner's fate.

    `shm` is on tmpfs where there is one; `tmp` is for sockets and temporary files. `mark` goes into the environment of
    child processes. The owner calls `close` when it ends well; when it dies, the janitor does the same.
    """

    def __init__(self, job_id: str, owner: str) -> None:
        fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.shm = Path(tempfile.mkdtemp(prefix=f"rolemesh-{job_id}-{owner}-", dir=fast))
        self.tmp = Path(tempfile.mkdtemp(prefix=f"rm-{job_id}-", dir="/tmp"))
        self.mark = f"{job_id}/{owner}/{self.tmp.name}"
        self._folders = [str(self.shm), str(self.tmp)]
        script = str(Path(janitor.__file__))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, f"{MARKER}={self.mark}", *self._folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.wait()
        assert process.stdin is not None
        self._pipe = process.stdin

    def close(self) -> None:
        """Kill every process with the mark and remove the folders, now. Idempotent."""
        janitor.sweep(f"{MARKER}={self.mark}", self._folders)
        self._pipe.close()
