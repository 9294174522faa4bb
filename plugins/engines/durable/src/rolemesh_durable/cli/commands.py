"""The verbs that talk to a running job, as commands: what they do is imported when they are typed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["Attach", "Checkpoint", "Events", "Logs", "Status", "Stop"]


class _Verb(Command):
    module: ClassVar[str]

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """What the module has: ``app``, with verbs of its own, or ``command``."""
        module = import_module(f"rolemesh_durable.cli.{cls.module}")
        found: Callable[..., Any] = getattr(module, "app", None) or module.command
        return found


class Status(_Verb):
    """`rolemesh status`."""

    module: ClassVar[str] = "status"
    help: ClassVar[str] = "Show jobs: master, agents and ranks."


class Attach(_Verb):
    """`rolemesh attach`."""

    module: ClassVar[str] = "attach"
    help: ClassVar[str] = "Show the live view of a running job."


class Logs(_Verb):
    """`rolemesh logs`."""

    module: ClassVar[str] = "logs"
    help: ClassVar[str] = "Print the logs of a job's ranks."


class Events(_Verb):
    """`rolemesh events`."""

    module: ClassVar[str] = "events"
    help: ClassVar[str] = "Print the journal of a job."


class Stop(_Verb):
    """`rolemesh stop`."""

    module: ClassVar[str] = "stop"
    help: ClassVar[str] = "Stop a job."


class Checkpoint(_Verb):
    """`rolemesh checkpoint`."""

    module: ClassVar[str] = "checkpoint"
    help: ClassVar[str] = "List, verify or export the snapshots of a run on disk."
