"""The backend: this machine, at a low priority."""

import os
from typing import Any, ClassVar

from pydantic import BaseModel, Field
from rolemesh_local import LocalBackend
from rolemesh_local.backend import LocalOptions

__all__ = ["{{ cookiecutter.__class }}"]


class NiceOptions(LocalOptions):
    """Options of `rolemesh run` where this backend is chosen: those of `local`, and a niceness."""

    niceness: int = Field(default=10, ge=0, le=19, description="How far the job's processes stand back for others.")


class {{ cookiecutter.__class }}(LocalBackend):
    """Runs a job on this machine so that other work goes first. All its processes inherit the niceness."""

    Options: ClassVar[type[BaseModel]] = NiceOptions
    name: ClassVar[str] = "{{ cookiecutter.name }}"

    def start(self, bundle: Any, lock: int = -1) -> None:
        """Start the job's processes from one that is nice already."""
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, max(before, self.options.niceness))
        try:
            super().start(bundle, lock)
        finally:
            if os.geteuid() == 0:  # others may not take a niceness back
                os.setpriority(os.PRIO_PROCESS, 0, before)
