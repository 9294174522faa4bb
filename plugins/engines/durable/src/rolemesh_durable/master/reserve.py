"""Disk space reserved for a job's result while there is some, so that the master can write it on a full disk."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolemesh.runs.run import RESULT_FILE
from rolemesh_durable.master.writer import Writes
from rolemesh_runtime.json_file import write_json

__all__ = ["take", "wait_and_write", "write_result"]

RESERVE_FILE = ".reserve"
RESERVE_BYTES = 256 << 10


def take(run_dir: Path) -> None:
    """Reserve the space in the run's folder. Do nothing if there is none."""
    with suppress(OSError):
        descriptor = os.open(run_dir / RESERVE_FILE, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)


def write_result(run_dir: Path, result: dict[str, Any]) -> None:
    """Write ``result.json``, into the reserved space if there is no other. Raises `OSError`."""
    try:
        write_json(run_dir / RESULT_FILE, result)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        (run_dir / RESERVE_FILE).unlink(missing_ok=True)
        write_json(run_dir / RESULT_FILE, result)
    (run_dir / RESERVE_FILE).unlink(missing_ok=True)


def wait_and_write(run_dir: Path, result: dict[str, Any]) -> None:
    """Repeat `write_result` until it succeeds. Only for a caller that has nothing else to do."""
    writes = Writes()
    writes.submit(RESULT_FILE, lambda: write_result(run_dir, result))
    writes.take()
    while pause := writes.attempt():
        time.sleep(pause)
