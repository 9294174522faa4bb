"""The frame of the verbs: the run that a verb names, and the reason that it gives for a request."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from rolemesh.runs.run import runs_folder
from rolemesh_durable.api.jobs import LivingRun, find_run

__all__ = ["find", "reason"]


def find(job: str, runs_dir: str | Path | None) -> LivingRun:
    """Return the run of `job` in the runs folder of the option ``--runs-dir``. Raises `UnknownRunError`."""
    return LivingRun(find_run(job, runs_folder(runs_dir)).path)


def reason(verb: str) -> str:
    """The reason that the job's journal gives: the verb with its options, the user, and this process."""
    return f"rolemesh {verb}, by {getpass.getuser()} (pid {os.getpid()})"
