"""The durable engine of rolemesh: master, agents and ranks that may die, and the verbs that talk to a running job.

`job_status` and `job_statuses` ask from any process how jobs are. Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh_durable.control.picture import job_status, job_statuses

__all__ = ["job_status", "job_statuses"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rolemesh_durable' has no attribute {name!r}")
    from rolemesh_durable.control import picture

    return getattr(picture, name)
