"""The master's process as extensions see it, and their parts of it, which answer requests and run effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rolemesh.api.observer import StepMetrics
from rolemesh_durable.protocol.launcher import Launcher
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.transitions import Transition
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["Answer", "Carry", "MasterShell", "ShellPart"]

Answer = Callable[[Any], str]
"""Handles a request, and returns why it is refused; "" if it is not."""
Carry = Callable[[Any], None]
"""Carries out an effect. It returns at once."""


class MasterShell(NamedTuple):
    """The master's process, as an extension sees it."""

    config: MasterConfig
    launcher: Launcher
    machine: Callable[[], MasterMachine]
    """The machine. Only the master's own thread touches it."""
    lines: Sequence[StepMetrics]
    """The latest lines of metrics, the newest last."""
    put: Callable[[e.Event], None]
    """Gives the machine an event, from any thread."""
    beside: Callable[[str, Callable[[], None], Callable[[str], e.Event]], None]
    """``beside(name, task, failed)`` runs `task` in a thread. If that raises, the machine gets `failed(why)`."""
    journal: Callable[[Transition, Callable[[], object]], None]
    """``journal(record, then)`` journals what the machine does not know of, and calls `then` when it is durable."""
    stall: Callable[[float], None]
    """Lets the next write to the run's files stand still, for a rehearsal."""


class ShellPart:
    """Base of an extension's part of the shell."""

    def __init__(self, shell: MasterShell) -> None:
        self._shell = shell

    def requests(self) -> Mapping[type, Answer]:
        """The requests of clients that it answers, by type. Called in the master's thread.

        Each type is a frozen `msgspec.Struct` with a tag of its own. `ControlClient.ask` sends it.
        """
        return {}

    def effects(self) -> Mapping[type, Carry]:
        """The effects that it carries out, by type. Called in the master's thread."""
        return {}
