"""The API of a diagnoser: its base class. What it judges and says is in `rolemesh.api.failures`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import NoOptions

__all__ = ["DIAGNOSER_API_VERSION", "Diagnoser"]

DIAGNOSER_API_VERSION = 1


class Diagnoser:
    """Base class of diagnosers (entry-point group ``rolemesh.diagnosers``): implement the hook `diagnose`.

    One instance per job, in the master. Diagnosers are asked in the job file's order, and then the levels; the first
    verdict counts. The hook must be pure.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    api_version: ClassVar[int] = DIAGNOSER_API_VERSION

    def __init__(self, options: Any) -> None:
        self.options = options
