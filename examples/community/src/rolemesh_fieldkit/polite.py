"""The backend `polite`: this machine, at a low priority."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from pydantic import BaseModel, Field
from rolemesh_local import LocalBackend
from rolemesh_local.backend import LocalOptions


class PoliteOptions(LocalOptions):
    """Options of the backend: those of `local`, and a niceness."""

    niceness: int = Field(default=10, ge=0, le=19, description="How far the job's processes stand back for others.")


class Polite(LocalBackend):
    """Runs a job on this machine so that other work goes first. The job's processes inherit the niceness."""

    Options: ClassVar[type[BaseModel]] = PoliteOptions
    api_version: ClassVar[int] = 1
    name: ClassVar[str] = "polite"

    def start(self, bundle: Any, lock: int = -1) -> None:
        """Start the job's processes from a process with the niceness."""
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, max(before, self.options.niceness))
        try:
            super().start(bundle, lock)
        finally:
            if os.geteuid() == 0:
                os.setpriority(os.PRIO_PROCESS, 0, before)  # others may not take a niceness back
