"""What a rank's agent has told it: addresses, how far everything is, to fail (a rehearsal), and to stop."""

from __future__ import annotations

import os
from collections.abc import Callable

from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.master_config import ENDLESS
from rolemesh_durable.protocol.messages import Adopted, AgentToRank, Connect, Fault, Stop, Watermarks

__all__ = ["Control"]

FAULT_EXIT_CODE = 3


class Control:
    """Takes the agent's messages in order; pass it to `Endpoint` as `on_control`."""

    def __init__(self) -> None:
        self.granted = -1
        """The last step that may run."""
        self.last = ENDLESS
        """The last step of the job, as far as it is known."""
        self.pause = -1
        """The step after which the layout changes."""
        self.due = -1
        """A step to which somebody waits for all ranks to come: `pause`, or the last one of a job that is to finish."""
        self.layout = Layout()
        """The newest that the agent has told of."""
        self.advance: Watermarks | None = None
        """How far everything is, as the agent has said last."""
        self.stopping: Stop | None = None
        self.wire: Connect | None = None
        """All neighbours, as far as the agent has told of them."""
        self.raising = False
        """A rehearsal: the next operator is to raise."""
        self.on_advance: Callable[[Watermarks], None] | None = None
        self.on_wire: Callable[[Connect], None] | None = None
        self.on_raise: Callable[[], None] | None = None
        self.on_adopted: list[Callable[[], None]] = []
        """Called in order when another incarnation of the agent has taken over: it knows nothing yet."""

    def __call__(self, message: AgentToRank) -> None:
        """Take note of `message`, and call whoever is to be told."""
        match message:
            case Watermarks():
                self.advance = message
                self.granted = max(self.granted, message.granted)
                self.last = message.last if message.last >= 0 else self.last
                self.pause, self.layout = message.pause, message.layout
                self.due = max(message.pause, message.last)
                if self.on_advance is not None:
                    self.on_advance(message)
            case Connect():
                known = {(peer.role, peer.rank): peer for peer in (self.wire.peers if self.wire is not None else ())}
                known |= {(peer.role, peer.rank): peer for peer in message.peers}
                self.wire = Connect(tuple(known.values()), message.rendezvous)
                if self.on_wire is not None:
                    self.on_wire(message)
            case Fault(kind="exit"):
                os._exit(FAULT_EXIT_CODE)
            case Fault():
                self.raising = True
                if self.on_raise is not None:
                    self.on_raise()
            case Adopted():
                for tell in self.on_adopted:
                    tell()
            case Stop():
                self.stopping = message
