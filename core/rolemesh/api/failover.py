"""The base class of failover levels, and the answer that ends a job.

Failures and recovery plans are in `rolemesh.api.failures`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.failures import Scope
from rolemesh.api.plugin import Plugin


class Budget(BaseModel, extra="forbid", frozen=True):
    """The number of attempts of a level for one rank or group before the next level's turn."""

    max_attempts: int = Field(
        default=5, ge=1, description="Maximum recoveries of one rank or group within window_s."
    )
    window_s: float = Field(
        default=300.0, gt=0, description="Seconds after which a recovery that helped expires."
    )


class GiveUp(msgspec.Struct, frozen=True):
    """The decision of a level to end the job: it fails with `reason`, and the master asks no
    further level."""

    reason: str


class FailoverLevel(Plugin):
    """Base class of failover levels: implement the hook `recover`, and `diagnose` to judge a
    failure first.

    One instance per job, in the master. Mark hooks with `rolemesh.hookimpl`. They must be pure: a
    level proposes, the coordinator executes and keeps the budget. Derive `Options` from `Budget`.
    The master asks levels for a verdict before the job's diagnosers. A verdict chooses the first
    level of the ladder by `scope`, which says how much the level restarts.
    """

    Options: ClassVar[type[Budget]] = Budget
    scope: ClassVar[Scope] = "process"
