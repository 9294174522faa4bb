"""A rank's part of the one checkpoint of a job that takes no snapshots: its state after the last step."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from rolemesh.api.workload import State
from rolemesh.errors import RolemeshError
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.attempt import Attempt, Removed, Writer, write_state
from rolemesh_durable.protocol.messages import Persisted
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_runtime.operator_failure import summarize

__all__ = ["not_kept", "write_last"]

_LOG = logging.getLogger(__name__)


def write_last(start: RankStart, state: State | None, step: int) -> Persisted:
    """Write the rank's `state` after `step` into the run's folder. It is durable on return; None writes no file.

    Raises `TypeError` for a value that cannot be in a snapshot, `OSError` and `Removed`; then no file is left.
    """
    launch = start.launch
    who = launch.role, launch.rank, launch.world_size
    attempt = Attempt(Path(start.job.run_dir), *who, step, start.timeline)
    try:
        if state is not None:
            attempt.write(disk.state_file(*who), partial(_fill, state=state, step=step, rank=launch.rank))
            attempt.sync(set())
    except BaseException:
        attempt.remove()
        raise
    return Persisted(launch.role, launch.rank, step, attempt.files, start.timeline, launch.generation, attempt.attempt)


def not_kept(start: RankStart, error: Exception) -> str:
    """Return why the rank's last state is not on disk."""
    _LOG.error("the last state is not kept", exc_info=error)
    rank = str(start.launch.ref)
    if isinstance(error, OSError | Removed):
        folder = disk.snapshots_folder(start.job.run_dir)
        why = error.strerror if isinstance(error, OSError) else "its folder was removed"
        return f"the last state of {rank} cannot be written: {why or error} (in {folder})"
    return f"{rank} has given no last state: {error.what if isinstance(error, RolemeshError) else summarize(error)}"


def _fill(writer: Writer, state: State, step: int, rank: int) -> None:
    write_state(writer, state, step, rank)
