"""The end of a job whose masters die one after the other, so that no master is left to write its result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rolemesh.errors import EXIT_FAILED
from rolemesh.runs.run import CONTROL_FILE, LOGS_DIR
from rolemesh_durable.master.reserve import wait_and_write
from rolemesh_durable.protocol.job import JobBundle
from rolemesh_durable.protocol.master_config import known
from rolemesh_durable.runs import Run

__all__ = ["give_up"]


def give_up(bundle: JobBundle, why: str) -> None:
    """Write ``result.json`` of a job that was running. For a job that never began, its driver does that."""
    run_dir = Path(bundle.config.run_dir)
    control = Run(run_dir).control()
    if control is not None and control.job_id == bundle.job_id:
        result: dict[str, Any] = {
            "name": bundle.config.name,
            "job_id": bundle.job_id,
            "status": "failed",
            "message": f"{why}; see {run_dir / LOGS_DIR / 'master.log'}",
            "exit_code": EXIT_FAILED,
            "steps": known(bundle.config.steps),
            "committed_steps": None,
            "wall_s": round(time.time() - control.started, 3),
            "state_sha256": dict.fromkeys(bundle.config.world_sizes),
            "plugins": bundle.plugins,
            "run_dir": str(run_dir),
        }
        wait_and_write(run_dir, result)
        (run_dir / CONTROL_FILE).unlink(missing_ok=True)
