"""Rehearsed failures of a job: each is journalled before it happens, so that the trail tells it from others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from rolemesh.api.observer import Event
from rolemesh_durable import faults
from rolemesh_durable.master.journal import Journal
from rolemesh_durable.master.publication import Publication
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import Launcher
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.transitions import Injected

__all__ = ["Injector"]


class Injector:
    """Does what hits the master or a node; `put` hands the machine what hits an agent or a rank."""

    def __init__(
        self, journal: Journal, launcher: Launcher, publication: Publication, put: Callable[[e.Event], None]
    ) -> None:
        self._journal, self._launcher, self._publication, self._put = journal, launcher, publication, put

    def inject(self, machine: MasterMachine, kind: m.FaultKind, target: str) -> str:
        """Let it happen; says why not, "" if it does."""
        what, _, name = target.partition(":")
        if target == "master":
            self._then(kind, target, lambda: self._fail(kind))
        elif what == "node":
            self._then(kind, target, lambda: self._launcher.lose(name))
        elif what == "agent":
            if why := machine.why_not(name, "", -1):
                return why
            self._put(e.InjectAsked(kind, agent=name))
        else:
            role, _, rank = target.rpartition("/")
            if why := machine.why_not("", role, int(rank)):
                return why
            self._put(e.InjectAsked(kind, role=role, rank=int(rank)))
        return ""

    def _then(self, kind: m.FaultKind, target: str, act: Callable[[], object]) -> None:
        def journalled(events: list[Event]) -> None:
            self._publication.add(events)
            act()

        injected = Injected(kind, target)
        self._journal.append([(injected.kind, injected.data)], journalled)

    def _fail(self, kind: m.FaultKind) -> None:
        """What a rehearsal does to this master."""
        match kind:
            case "full":
                faults.fill([os.getpid()])
            case "clock":
                faults.step_clock()
            case "stall":
                self._publication.stall(faults.LASTING_S)
            case _:
                os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
