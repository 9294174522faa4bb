"""The verbs for running jobs, as commands. Their code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["Attach", "Checkpoint", "Clean", "Drain", "Events", "Logs", "Scale", "Status", "Stop"]


class _Verb(Command):
    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the command's module: its ``app``, if it has several verbs, or its ``command``."""
        module = import_module(f"rolemesh_jobs.{cls.__name__.lower()}")
        found: Callable[..., Any] = getattr(module, "app", None) or module.command
        return found


class Status(_Verb):
    """`rolemesh status`."""

    help: ClassVar[str] = "Show jobs: master, agents and ranks."
    group: ClassVar[str] = "Look at jobs"


class Attach(_Verb):
    """`rolemesh attach`."""

    help: ClassVar[str] = "Show the live view of a running job."
    group: ClassVar[str] = "Look at jobs"


class Logs(_Verb):
    """`rolemesh logs`."""

    help: ClassVar[str] = "Print the logs of a job's ranks."
    group: ClassVar[str] = "Look at jobs"


class Events(_Verb):
    """`rolemesh events`."""

    help: ClassVar[str] = "Print the journal of a job."
    group: ClassVar[str] = "Look at jobs"


class Stop(_Verb):
    """`rolemesh stop`."""

    help: ClassVar[str] = "Stop a job."
    group: ClassVar[str] = "Change running jobs"


class Clean(_Verb):
    """`rolemesh clean`."""

    help: ClassVar[str] = "List the runs that later ones have replaced, or delete them."
    group: ClassVar[str] = "Use what jobs leave"


class Scale(_Verb):
    """`rolemesh scale`."""

    help: ClassVar[str] = "Give roles of a running job more ranks, or fewer."
    group: ClassVar[str] = "Change running jobs"


class Drain(_Verb):
    """`rolemesh drain`."""

    help: ClassVar[str] = "Bring ranks away from a node that is going to leave."
    group: ClassVar[str] = "Change running jobs"


class Checkpoint(_Verb):
    """`rolemesh checkpoint`."""

    help: ClassVar[str] = "List, verify or export the snapshots of a run on disk."
    group: ClassVar[str] = "Use what jobs leave"
