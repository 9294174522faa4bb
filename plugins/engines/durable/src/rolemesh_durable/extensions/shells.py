"""The extensions' parts of the master's process: they answer requests, and carry out effects."""

from __future__ import annotations

from rolemesh_durable.extensions.rehearsal.shell import Injector
from rolemesh_durable.extensions.relayout.shell import Relayouts
from rolemesh_durable.extensions.scaling.shell import Scalers
from rolemesh_durable.extensions.signals.shell import SignalRequests
from rolemesh_durable.protocol.master.shell import ShellPart

__all__ = ["SHELL_PARTS"]

SHELL_PARTS: tuple[type[ShellPart], ...] = (Relayouts, Scalers, Injector, SignalRequests)
