"""The agent's part: ranks with signals of their own get one at once when the job stops or a recovery replaces them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from rolemesh_durable.extensions.signals.messages import Signal
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess, Seen
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_processes.facts import in_group
from rolemesh_processes.signals import REPLACED

__all__ = ["Signaller"]

LOOK_S = 0.02
WAKE_S = 0.5
"""Seconds between two `REPLACED`. CPython runs the handler of a signal that comes right before a system call only when
another signal interrupts that call."""
MOST_S = 3600.0
"""Maximum seconds to wait for the processes that ranks have left behind."""


class Signaller(AgentPart):
    """Sends a rank's process group the signal once. Then it lets the group's other processes end.

    They have the rest of the time that a rank has to stop (`stop_grace_s`). So the child of a shell script, which does
    not wait for it, may still write its checkpoint.

    A rank that a recovery replaces gets SIGTERM, and `REPLACED`, and has the same time. So do the processes that it
    leaves behind.
    """

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._number: int = signal.SIGTERM
        self._sent: dict[StartRef, int] = {}
        """The ranks that have got the signal, with their process groups."""
        self._until: dict[StartRef, float] = {}
        """The ranks that a recovery replaces, with the times at which they are killed."""
        self._left: dict[int, float] = {}
        """The process groups of replaced ranks that have gone, with the times at which they are killed."""
        self._woken = 0.0

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The signal that a person has sent."""
        return {Signal: self._learn}

    def _learn(self, told: Signal) -> None:
        self._number = told.number

    def ends(self, start: StartRef) -> bool:
        """Send a rank that a recovery replaces SIGTERM, and let it end."""
        machine, job = self._process.machine(), self._process.config.job
        rank, now = machine.ranks[start.ref], time.monotonic()
        if machine.lifetime.stopping or start.role not in job.own_signals or rank.hello is None:
            return False
        if start not in self._sent:
            self._until[start], self._woken = now + job.own_signals[start.role], now
            self._send(start, rank.hello.pid, signal.SIGTERM)
            _kill(os.kill, rank.hello.pid, REPLACED)
        return now < self._until.get(start, now)

    def gone(self, start: StartRef) -> None:
        """Processes that a replaced rank leaves behind have the rest of its time, as under torchrun."""
        if (until := self._until.pop(start, None)) is not None:
            self._left[self._sent[start]] = until

    def look(self) -> Seen:
        """If the job stops, send the signal to the ranks that have not got it. Kill those whose time is over."""
        machine, now = self._process.machine(), time.monotonic()
        if machine.lifetime.stopping:
            for rank in machine.ranks.values():
                own = rank.launch.role in self._process.config.job.own_signals
                if own and rank.reachable and rank.hello is not None and rank.start not in self._sent:
                    self._send(rank.start, rank.hello.pid, self._number)
        else:
            wakes = now > self._woken + WAKE_S
            self._woken = now if wakes else self._woken
            for start, until in list(self._until.items()):
                if until < now:
                    self._process.processes.kill(start)
                elif wakes:
                    _kill(os.kill, self._sent[start], REPLACED)
        self._end_left(now)
        return Seen()

    def _end_left(self, now: float) -> None:
        for group, until in list(self._left.items()):
            if not _kill(os.killpg, group, signal.SIGKILL if until < now else 0):
                del self._left[group]

    def _send(self, start: StartRef, pid: int, number: int) -> None:
        self._sent[start] = pid
        _kill(os.killpg, pid, number)

    def close(self) -> None:
        """The ranks are gone: wait for the other processes that have got the signal, until the time is over."""
        lifetime, until = self._process.machine().lifetime, time.monotonic() + MOST_S
        while not lifetime.patient and any(map(in_group, self._sent.values())):
            if lifetime.kills(now := time.monotonic()) or now > until:
                break
            self._end_left(now)
            time.sleep(LOOK_S)


def _kill(kill: Callable[[int, int], None], number: int, signalled: int) -> bool:
    """Send a process or a group a signal. Return whether it was there."""
    try:
        kill(number, signalled)
    except ProcessLookupError:
        return False
    return True
