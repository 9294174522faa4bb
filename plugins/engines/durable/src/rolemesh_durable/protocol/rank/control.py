"""The newest messages of a rank's agent: addresses, watermarks, injected faults, and the request to stop."""

from __future__ import annotations

from collections.abc import Callable

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.snapshot_plan import ENDLESS

__all__ = ["Control"]


class Control:
    """Takes the agent's messages in the order in which they arrive. It keeps the newest, and calls the hooks."""

    def __init__(self, leave: Callable[[], None]) -> None:
        """`leave` ends the process without cleaning up; a rehearsal asks for it."""
        self._leave = leave
        self.granted = -1
        """The last step that the rank may run."""
        self.last = ENDLESS
        """The last step of the job, as far as the agent knows it."""
        self.pause = -1
        """The step after which the layout changes."""
        self.due = -1
        """The step at which all ranks meet: `pause`, or the last step of a job that is to finish."""
        self.layout = Layout()
        """The newest layout that the agent has sent."""
        self.advance: m.Watermarks | None = None
        """The newest watermarks that the agent has sent; None before the first."""
        self.stopping: m.Stop | None = None
        """The agent's request to stop; None before it."""
        self.peers: dict[RankRef, m.Peer] = {}
        """The addresses of all neighbours that the agent has sent, and that of the rank itself."""
        self.rendezvous: m.RendezvousAt | None = None
        """The newest meeting point of the rank's group."""
        self.raising = False
        """True if a rehearsal asks the next operator to raise."""
        self._on_advance: Callable[[m.Watermarks], None] | None = None
        self._on_wire: Callable[[m.Connect], None] | None = None
        self._on_raise: Callable[[], None] | None = None
        self._on_master: Callable[[m.MasterSays], None] | None = None
        self.on_adopted: list[Callable[[], None]] = []
        """Called in this order when another incarnation of the agent takes over, which knows nothing yet."""

    def attend(self, wired: Callable[[m.Connect], None], advanced: Callable[[m.Watermarks], None]) -> None:
        """Call `wired` with each `Connect` and `advanced` with each `Watermarks`, also with the newest of the past."""
        self._on_wire, self._on_advance = wired, advanced
        if self.advance is not None:
            advanced(self.advance)

    def attend_fault(self, raising: Callable[[], None]) -> None:
        """Call `raising` when a rehearsal asks the next operator to raise, also if it has asked before."""
        self._on_raise = raising
        if self.raising:
            raising()

    def attend_master(self, said: Callable[[m.MasterSays], None]) -> None:
        """Call `said` with each later `MasterSays`."""
        self._on_master = said

    def end_at(self, last: int) -> None:
        """The job has no step after `last`."""
        self.last = min(self.last, last)

    def __call__(self, message: m.AgentToRank) -> None:
        """Keep `message`, and call the hook for it."""
        match message:
            case m.Watermarks():
                self._advanced(message)
            case m.Connect():
                self.peers |= {peer.ref: peer for peer in message.peers}
                self.rendezvous = message.rendezvous
                if self._on_wire is not None:
                    self._on_wire(message)
            case m.MasterSays() if self._on_master is not None:
                self._on_master(message)
            case m.Fault(kind="exit"):
                self._leave()
            case m.Fault():
                self.raising = True
                if self._on_raise is not None:
                    self._on_raise()
            case m.Adopted():
                for call in self.on_adopted:
                    call()
            case m.Stop():
                self.stopping = message

    def _advanced(self, message: m.Watermarks) -> None:
        self.advance = message
        self.granted = max(self.granted, message.granted)
        self.last = message.last if message.last >= 0 else self.last
        self.pause, self.layout = message.pause, message.layout
        self.due = max(message.pause, message.last)
        if self._on_advance is not None:
            self._on_advance(message)
