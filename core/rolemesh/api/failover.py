"""The API of a failover level: its base class, and how it ends a job.

Failures and recovery plans are in `rolemesh.api.failures`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.failures import Scope
from rolemesh.api.plugin import Plugin


class Budget(BaseModel, extra="forbid", frozen=True):
    """How often a level may be tried for one rank or group before the next level's turn comes."""

    max_attempts: int = Field(
        default=5, ge=1, description="Recoveries of one rank or group within window_s."
    )
    window_s: float = Field(
        default=300.0, gt=0, description="Seconds after which an attempt that helped is forgotten."
    )


class GiveUp(msgspec.Struct, frozen=True):
    """A level ends the job: no further level is asked, the job fails, and its message has
    `reason`."""

    reason: str


class FailoverLevel(Plugin):
    """Base class of failover levels: implement the hook `recover`, and `diagnose` to judge a
    failure first.

    Levels are asked for a verdict before the job's diagnosers. One instance per job, in the master.
    Hooks are marked with `rolemesh.hookimpl` and must be pure: they propose, the coordinator
    executes. It also keeps the budget: derive `Options` from `Budget`. `scope` says how much the
    level moves, so that a verdict can choose where on the ladder to start.
    """

    Options: ClassVar[type[Budget]] = Budget
    scope: ClassVar[Scope] = "process"
