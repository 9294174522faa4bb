"""Runs of small jobs to their end, by the command that a user types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["run_job"]


def run_job(folder: Path, *given: str) -> None:
    """Run ``job.yaml`` of `folder` on the local backend, with its runs in ``runs``; `given` are further arguments."""
    command = [Path(sys.executable).with_name("rolemesh"), "run", "job.yaml"]
    options = ["--backend", "local", "--runs-dir", "runs", *given]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
