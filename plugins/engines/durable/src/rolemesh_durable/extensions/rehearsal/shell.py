"""The rehearsal's part of the master's process: it carries out failures of the master and of nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from rolemesh_durable.extensions.rehearsal import faults
from rolemesh_durable.extensions.rehearsal.master import InjectAsked, Injected, Rehearsal, Released
from rolemesh_durable.extensions.rehearsal.requests import InjectFault, Release
from rolemesh_durable.protocol.failures import FaultKind
from rolemesh_durable.protocol.master.shell import Answer, ShellPart

__all__ = ["Injector"]


class Injector(ShellPart):
    """Injects failures: into the master or a node by itself, into an agent or a rank by the machine."""

    def requests(self) -> Mapping[type, Answer]:
        """The requests of a rehearsal."""
        return {Release: self._release, InjectFault: self._inject}

    def _release(self, request: Release) -> str:
        self._shell.put(Released(request.step))
        return ""

    def _inject(self, request: InjectFault) -> str:
        kind, target = request.kind, request.target
        what, _, name = target.partition(":")
        role, _, rank = target.rpartition("/")
        machine = self._shell.machine()
        if machine.state.phase == "new":
            return "the master has not taken over yet"
        rehearsal = machine.extension(Rehearsal)
        if target == "master":
            self._then(kind, target, lambda: self._fail(kind))
        elif what == "node" and name:  # only the launcher knows which nodes there are
            self._then(kind, target, lambda: self._shell.launcher.lose(name))
        elif what == "agent" and name in machine.state.agents:
            if why := rehearsal.why_not(name, "", -1):
                return why
            self._shell.put(InjectAsked(kind, agent=name))
        elif rank.isdecimal() and (role, int(rank)) in machine.state.ranks:
            if why := rehearsal.why_not("", role, int(rank)):
                return why
            self._shell.put(InjectAsked(kind, role=role, rank=int(rank)))
        else:
            return f"there is no {target!r} to inject a failure into"
        return ""

    def _then(self, kind: FaultKind, target: str, act: Callable[[], object]) -> None:
        self._shell.journal(Injected(kind, target), act)

    def _fail(self, kind: FaultKind) -> None:
        """Inject a failure into this master."""
        match kind:
            case "full":
                faults.fill([os.getpid()])
            case "clock":
                faults.step_clock()
            case "stall":
                self._shell.stall(faults.LASTING_S)
            case _:
                os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
