"""The frame of the verbs: the run that a verb names, and the reason that it gives for a request."""

from __future__ import annotations

import os
from pathlib import Path

from rolemesh.errors import RolemeshError
from rolemesh.runs.run import runs_folder
from rolemesh_durable.api.jobs import LivingRun, find_run
from rolemesh_runtime.first_look import first_look
from rolemesh_runtime.user import user_name

__all__ = ["find", "reason"]


def find(job: str, runs_dir: str | Path | None) -> LivingRun:
    """Return the run of `job` in the runs folder of the option ``--runs-dir``. Raises `UnknownRunError`."""
    return first_look(job, lambda: _found(job, runs_folder(runs_dir)))


def _found(job: str, folder: Path) -> LivingRun:
    try:
        return LivingRun(find_run(job, folder).path)
    except RolemeshError as error:
        if os.sep in job and os.path.isdir(job) and not os.access(job, os.R_OK | os.X_OK, effective_ids=True):
            what, remedy = "this user may not read it", "run it as the owner, or let the owner run: chmod -R a+rX"
            raise RolemeshError(what, where=job, remedy=remedy) from error
        raise


def reason(verb: str) -> str:
    """The reason that the job's journal gives: the verb with its options, the user, and this process."""
    return f"rolemesh {verb}, by {user_name()} (pid {os.getpid()})"
