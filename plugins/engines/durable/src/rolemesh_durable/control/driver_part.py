"""A driver as extensions see it, and their parts of it, which run while the driver follows a job."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rolemesh.job.engine import Say
from rolemesh.job.prepared import Prepared
from rolemesh_durable.backends import Backend

__all__ = ["DriverPart", "Followed"]


class Followed(NamedTuple):
    """A running job that a driver follows."""

    asked: Prepared
    """The requested job, with its elastic roles."""
    job: Prepared
    """The job that runs: the requested one, fitted to the nodes."""
    backend: Backend
    run_dir: Path
    snapshots: bool
    """True if the job takes snapshots while it runs."""
    say: Say
    """Prints a line for the user."""


class DriverPart:
    """Base of an extension's part in the driver. There is a new one for each start of the job."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed

    def start(self) -> None:
        """The driver follows the job from now on."""

    def stop(self) -> None:
        """The job is over. The driver waits for this call."""
