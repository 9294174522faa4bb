"""The master's part: it names the signal to the agents."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh_durable.extensions.signals.messages import Signal
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import MasterExtension
from rolemesh_durable.protocol.master.hooks import Handler

__all__ = ["SignalAsked", "Signals"]


class SignalAsked(e.ExtensionEvent, frozen=True):
    """The job's ranks are to get the signal `number` at its stop, which is requested next."""

    number: int


class Signals(MasterExtension):
    """Sends the agents the signal before the job stops. If the message is lost, the ranks get SIGTERM."""

    def handlers(self) -> Mapping[type, Handler]:
        """The request."""
        return {SignalAsked: self._ask}

    def _ask(self, asked: SignalAsked) -> None:
        context = self._context
        message = m.ToPart.of(context.config.epoch, Signal(asked.number))
        for name, agent in context.state.agents.items():
            if agent.state in ("starting", "up"):
                context.want(e.ToAgent(name, agent.incarnation, message))
