"""The verbs of rolemesh for running jobs and their runs, and the state of jobs as plain data.

`job_status` and `job_statuses` return the state of jobs in any process. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh_jobs.picture import job_status, job_statuses

__all__ = ["job_status", "job_statuses"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rolemesh_jobs' has no attribute {name!r}")
    from rolemesh_jobs import picture

    return getattr(picture, name)
