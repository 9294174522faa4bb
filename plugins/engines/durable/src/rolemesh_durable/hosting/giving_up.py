"""The end of a job whose masters die one after the other, so that no master is left to write its result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rolemesh.errors import EXIT_FAILED
from rolemesh.runs.run import CONTROL_FILE, LOGS_DIR
from rolemesh_durable.master.reserve import wait_and_write
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.snapshot_plan import known
from rolemesh_durable.runs import Run
from rolemesh_runtime.unreadable import when_readable

__all__ = ["give_up"]


def give_up(config: MasterConfig, why: str) -> None:
    """Write ``result.json`` of a job that was running. For a job that never began, its driver does that."""
    run_dir = Path(config.job.run_dir)
    control = when_readable(Run(run_dir).control)
    if control is not None and control.job_id == config.job.job_id:
        result: dict[str, Any] = {
            "name": config.job.name,
            "job_id": config.job.job_id,
            "status": "failed",
            "message": f"{why}; see {run_dir / LOGS_DIR / 'master.log'}",
            "exit_code": EXIT_FAILED,
            "steps": known(config.job.steps),
            "committed_steps": None,
            "wall_s": round(time.time() - control.started, 3),
            "state_sha256": dict.fromkeys(config.job.world_sizes),
            "plugins": config.versions,
            "run_dir": str(run_dir),
        }
        wait_and_write(run_dir, result)
        (run_dir / CONTROL_FILE).unlink(missing_ok=True)
