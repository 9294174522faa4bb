"""The agent's part: it sends all ranks with signals of their own one signal at once, as soon as the job stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rolemesh_durable.extensions.signals.messages import Signal
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess, Seen
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_processes.facts import in_group

__all__ = ["Signaller"]

LOOK_S = 0.02
MOST_S = 3600.0
"""Maximum seconds to wait for the processes that ranks have left behind."""


class Signaller(AgentPart):
    """Sends a rank's process group the signal once. Then it lets the group's other processes end.

    They have the rest of the time that a rank has to stop (`stop_grace_s`). So the child of a shell script, which does
    not wait for it, may still write its checkpoint.
    """

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._number: int = signal.SIGTERM
        self._sent: dict[StartRef, int] = {}
        """The ranks that have got the signal, with their process groups."""

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The signal that a person has sent."""
        return {Signal: self._learn}

    def _learn(self, told: Signal) -> None:
        self._number = told.number

    def look(self) -> Seen:
        """If the job stops, send the signal to the ranks that have not got it."""
        machine = self._process.machine()
        if machine.lifetime.stopping:
            for rank in machine.ranks.values():
                own = rank.launch.role in self._process.config.job.own_signals
                if own and rank.alive and rank.hello is not None and rank.start not in self._sent:
                    self._sent[rank.start] = rank.hello.pid
                    with suppress(ProcessLookupError):
                        os.killpg(rank.hello.pid, self._number)
        return Seen()

    def close(self) -> None:
        """The ranks are gone: wait for the other processes that have got the signal, until the time is over."""
        lifetime, until = self._process.machine().lifetime, time.monotonic() + MOST_S
        while not lifetime.patient and any(map(in_group, self._sent.values())):
            if lifetime.kills(now := time.monotonic()) or now > until:
                break
            time.sleep(LOOK_S)
