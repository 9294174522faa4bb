"""The master's part: it names the signal to the agents, and stops the job."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh_durable.extensions.signals.messages import Signal
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import MasterExtension
from rolemesh_durable.protocol.master.hooks import Handler

__all__ = ["SignalAsked", "Signals"]


class SignalAsked(e.ExtensionEvent, frozen=True):
    """A request to stop the job for `reason`, with the signal `number`."""

    number: int
    reason: str


class Signals(MasterExtension):
    """Sends the agents the signal before it stops the job. If the message is lost, the ranks get SIGTERM."""

    def handlers(self) -> Mapping[type, Handler]:
        """The request."""
        return {SignalAsked: self._ask}

    def _ask(self, asked: SignalAsked) -> None:
        context = self._context
        message = m.ToPart.of(context.config.epoch, Signal(asked.number))
        for name, agent in context.state.agents.items():
            if agent.state in ("starting", "up"):
                context.want(e.ToAgent(name, agent.incarnation, message))
        context.stop("interrupted", asked.reason, context.config.stop_grace_s)
