"""The API of a failover level: its base class. Failures and recovery plans are in `rolemesh.failures`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel

from rolemesh.workload import NoOptions

__all__ = ["FAILOVER_API_VERSION", "FailoverLevel"]

FAILOVER_API_VERSION = 1


class FailoverLevel:
    """Base class of failover levels: implement the hook `recover`, and `diagnose` to judge a failure first.

    One instance per job, in the master. Hooks are marked with `rolemesh.hookimpl` and must be pure: they propose, the
    coordinator executes.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    api_version: ClassVar[int] = FAILOVER_API_VERSION

    def __init__(self, options: Any) -> None:
        self.options = options
