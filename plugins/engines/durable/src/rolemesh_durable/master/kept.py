"""The snapshot that an ended job leaves on disk, or the reason why there is none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh.errors import RolemeshError
from rolemesh_checkpoint import disk
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["Kept", "described", "settle"]

ENDED_EARLY = (
    "the job ended before its last step, and no snapshot was on disk by then: "
    "engine.options.snapshots.persist_every=N writes one every N steps"
)
DRAIN = ", and `rolemesh stop --drain` ends a job after a step whose state is kept"
UNKNOWN = "it could not be written; `rolemesh events` tells why"


class Kept(NamedTuple):
    """A complete checkpoint: the state after `step`, in `folder`, of `roles`."""

    step: int
    folder: str
    bytes: int
    roles: tuple[str, ...]


def settle(run_dir: Path, config: MasterConfig, state: JobState) -> Kept | None:
    """Remove the snapshots of an ended job that are not to stay. Return the newest one that stays.

    The job's processes are gone, so no checkpoint without a manifest will be completed.
    """
    plan, job_id = config.job.snapshots, config.job.job_id
    with contextlib.suppress(OSError, RolemeshError):
        if plan.keep == 0 and state.status == "done":
            disk.prune(run_dir, 0, job_id)
        if plan.last or plan.keep == 0:
            for each in disk.find_checkpoints(run_dir):
                if not (each.path / disk.MANIFEST).exists():
                    shutil.rmtree(each.path, ignore_errors=True)
            with contextlib.suppress(OSError):
                disk.snapshots_folder(run_dir).rmdir()  # if it is empty
        for each in disk.find_checkpoints(run_dir):
            manifest = each.manifest
            if manifest is not None and manifest.job_id == job_id:
                roles = [role for role in manifest.world_sizes if disk.has_state(manifest, role)]
                size = sum(size for size, _ in manifest.files.values())
                return Kept(each.step, str(each.path), size, tuple(roles)) if roles else None
    return None


def described(kept: Kept | None, state: JobState, config: MasterConfig, troubles: Sequence[str]) -> dict[str, Any]:
    """Return the entries of ``result.json``: `kept`, and `not_kept` with the reason why the last state is missing.

    Pure.

    `troubles` are the job's problems with snapshots.
    """
    plan, last = config.job.snapshots, state.end
    why = ""
    if config.job.stateful and plan.keep > 0 and (plan.last or plan.enabled):
        if state.status == "done" and state.persisted < last:
            why = "; ".join(troubles) or UNKNOWN
        elif state.status != "done" and kept is None and state.committed >= 0:
            why = ENDED_EARLY + DRAIN * (state.status == "interrupted")
    found = None if kept is None else kept._asdict() | {"exports": [r for r in kept.roles if r in config.exports]}
    return {"kept": found, "not_kept": why}
