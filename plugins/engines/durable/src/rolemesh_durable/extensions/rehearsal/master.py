"""The master's part of a rehearsal: it limits how far ranks run, and journals each failure before it injects it.

So the journal distinguishes injected failures from others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.rehearsal.messages import ChildKilled, Inject
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.failures import FaultKind
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, MasterParts
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord

__all__ = ["InjectAsked", "Injected", "KilledChild", "Rehearsal", "Released"]

ALIVE = ("up", "ready", "running")


class Released(e.ExtensionEvent, frozen=True):
    """The rehearsal lets ranks run up to `step`."""

    step: int


class InjectAsked(e.ExtensionEvent, frozen=True):
    """A request to inject a failure into a rank, or with `rank` -1 into agent `agent`."""

    kind: FaultKind
    agent: str = ""
    role: str = ""
    rank: int = -1


class Injected(ExtensionRecord, frozen=True, tag="injected"):
    """The rehearsal injects a failure."""

    fault: str = msgspec.field(name="kind")
    target: str


class KilledChild(ExtensionRecord, frozen=True, tag="child_killed"):
    """The rehearsal has killed process `pid`, which the rank `target` had started."""

    target: str
    pid: int
    name: str


class Rehearsal(MasterExtension):
    """Limits how far ranks run, and sends agents the failures to inject."""

    records = (Injected, KilledChild)

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        config = parts.context.config
        self._released = config.origin_step if config.rehearsed else config.job.steps

    def handlers(self) -> Mapping[type, Handler]:
        """The requests of a rehearsal, and what its parts in agents report."""
        return {Released: self._release, InjectAsked: self._inject, ChildKilled: self._killed}

    def limit(self) -> int:
        """The newest step that the rehearsal lets ranks run to; without a rehearsal the job's last step."""
        return self._released

    def why_not(self, agent: str, role: str, rank: int) -> str:
        """Return why a failure of this agent or rank would hit no working process; "" if it would hit one."""
        record, home = self._target(agent, role, rank)
        if home is None or home.state != "up":
            return f"agent {agent or home.place.agent if home else agent} is {home.state if home else 'unknown'}"
        if record is not None and (record.state not in ALIVE or record.finished >= self._context.state.end):
            return f"{record.launch.ref} is {record.state}"
        return ""

    def _target(self, agent: str, role: str, rank: int) -> tuple[RankRecord | None, AgentRecord | None]:
        state = self._context.state
        record = state.ranks.get(RankRef(role, rank))
        return record, state.agents.get(record.agent if record is not None else agent)

    def _release(self, event: Released) -> None:
        self._released = max(self._released, event.step)

    def _killed(self, killed: ChildKilled) -> None:
        self._context.tell(KilledChild(str(killed.ref), killed.pid, killed.name))

    def _inject(self, event: InjectAsked) -> None:
        record, home = self._target(event.agent, event.role, event.rank)
        if home is None or home.state != "up":
            return
        name = home.place.agent
        target = str(record.launch.ref) if record is not None else name
        self._context.tell(Injected(event.kind, target))
        inject = m.ToPart.of(self._context.config.epoch, Inject(event.kind, event.role, event.rank))
        self._context.want(e.ToAgent(name, home.incarnation, inject))
