"""``rolemesh plugins lock``, and the option ``--locked`` of ``rolemesh run``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from rolemesh.api.command import Command, RunOption
from rolemesh.cli.arguments import JobArgument, Overrides
from rolemesh.job_file import load
from rolemesh.plugins.admission import Admission
from rolemesh.plugins.option_types import types_of_plugins
from rolemesh.plugins.select import select
from rolemesh_lock.lock import lock_file, locked, read_lock

__all__ = ["LockVerb", "Locked"]


class LockVerb(Command):
    """`rolemesh plugins lock`."""

    help: ClassVar[str] = "Write down which plugins a job uses."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return lock


def lock(job: JobArgument, overrides: Overrides = None) -> None:
    """Record name, distribution, version and hash of every plugin of a job, for `rolemesh run --locked`.

    The lock is JOB.lock.yaml beside the job file. Keep it under version control: its changes show which plugins
    changed.
    """
    records = select(load(job, overrides or (), types=types_of_plugins)).records
    path = lock_file(job)
    path.write_text(locked(job.name, records), encoding="utf-8")
    print(f"{path}: {len(records)} plugins")


class LockedOptions(BaseModel, extra="forbid"):
    """Options of ``rolemesh run``."""

    locked: bool = Field(
        default=False, description="Refuse plugins other than those of the job's lock (`plugins lock`)."
    )


class Locked(RunOption):
    """Admits only the plugins in the lock beside the job file."""

    Options: ClassVar[type[BaseModel]] = LockedOptions
    help: ClassVar[str] = "Hold a job to its lock."

    def admission(self, job: Path) -> Admission | None:
        """Return the lock's check. Raises `PluginError` if there is no lock, or if it names another version of the
        kernel."""
        if not self.options.locked:
            return None
        lock = read_lock(lock_file(job))
        lock.check_kernel(str(lock_file(job)))
        return Admission(lock.checked, "--locked")

    def wanted(self) -> bool:
        """False: the lock only checks plugins; the job runs as usual."""
        return False
