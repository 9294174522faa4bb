"""The newest messages of a rank's agent: addresses, watermarks, injected faults, and the request to stop."""

from __future__ import annotations

from collections.abc import Callable

from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.messages import Adopted, AgentToRank, Connect, Fault, MasterSays, Stop, Watermarks
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
        self.advance: Watermarks | None = None
        """The newest watermarks that the agent has sent; None before the first."""
        self.stopping: Stop | None = None
        """The agent's request to stop; None before it."""
        self.wire: Connect | None = None
        """The addresses of all neighbours that the agent has sent."""
        self.raising = False
        """True if a rehearsal asks the next operator to raise."""
        self._on_advance: Callable[[Watermarks], None] | None = None
        self._on_wire: Callable[[Connect], None] | None = None
        self._on_raise: Callable[[], None] | None = None
        self._on_master: Callable[[MasterSays], None] | None = None
        self.on_adopted: list[Callable[[], None]] = []
        """Called in this order when another incarnation of the agent takes over, which knows nothing yet."""

    def attend(self, wired: Callable[[Connect], None], advanced: Callable[[Watermarks], None]) -> None:
        """Call `wired` with each `Connect` and `advanced` with each `Watermarks`, also with the newest of the past."""
        self._on_wire, self._on_advance = wired, advanced
        if self.advance is not None:
            advanced(self.advance)

    def attend_fault(self, raising: Callable[[], None]) -> None:
        """Call `raising` when a rehearsal asks the next operator to raise, also if it has asked before."""
        self._on_raise = raising
        if self.raising:
            raising()

    def attend_master(self, said: Callable[[MasterSays], None]) -> None:
        """Call `said` with each later `MasterSays`."""
        self._on_master = said

    def end_at(self, last: int) -> None:
        """The job has no step after `last`."""
        self.last = min(self.last, last)

    def __call__(self, message: AgentToRank) -> None:
        """Keep `message`, and call the hook for it."""
        match message:
            case Watermarks():
                self._advanced(message)
            case Connect():
                known = {peer.ref: peer for peer in (self.wire.peers if self.wire is not None else ())}
                known |= {peer.ref: peer for peer in message.peers}
                self.wire = Connect(tuple(known.values()), message.rendezvous)
                if self._on_wire is not None:
                    self._on_wire(message)
            case MasterSays() if self._on_master is not None:
                self._on_master(message)
            case Fault(kind="exit"):
                self._leave()
            case Fault():
                self.raising = True
                if self._on_raise is not None:
                    self._on_raise()
            case Adopted():
                for call in self.on_adopted:
                    call()
            case Stop():
                self.stopping = message

    def _advanced(self, message: Watermarks) -> None:
        self.advance = message
        self.granted = max(self.granted, message.granted)
        self.last = message.last if message.last >= 0 else self.last
        self.pause, self.layout = message.pause, message.layout
        self.due = max(message.pause, message.last)
        if self._on_advance is not None:
            self._on_advance(message)
