"""The part of the master's process: it answers the request to stop the job with a signal."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from rolemesh_durable.extensions.signals.master import SignalAsked
from rolemesh_durable.extensions.signals.requests import SignalJob
from rolemesh_durable.protocol.master.events import StopAsked
from rolemesh_durable.protocol.master.shell import Answer, ShellPart

__all__ = ["SignalRequests"]


class SignalRequests(ShellPart):
    """Passes the request to the machine."""

    def requests(self) -> Mapping[type, Answer]:
        """The request to stop the job with a signal."""
        return {SignalJob: self._ask}

    def _ask(self, request: SignalJob) -> str:
        if request.number not in signal.valid_signals():
            return f"there is no signal {request.number}"
        self._shell.put(SignalAsked(request.number))
        self._shell.put(StopAsked(request.reason))
        return ""
