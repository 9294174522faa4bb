"""A rank as its agent's machine knows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from rolemesh.api.failures import Failure, describe_exit
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent.events import RankExited, RankSample
from rolemesh_durable.protocol.rank_key import RankKey

__all__ = ["AgentRank", "RankKey"]

EXIT_NOTICE_S = 0.1
"""How long an exit waits for the rank's own report, which says more than an exit code."""


class AgentRank(msgspec.Struct):
    """`alive`: there is, or is about to be, a process. `halted`: it is to be none, however it ends."""

    launch: m.RankLaunch
    state: Literal["starting", "up", "ready", "done", "failed", "gone"] = "starting"
    alive: bool = False
    halted: bool = False
    next: m.RankLaunch | None = None
    hello: m.RankHello | None = None
    setup_s: float = 0.0
    sha256: str = ""
    failure: Failure | None = None
    exited: RankExited | None = None
    exited_at: float = 0.0
    snapshots: tuple[int, ...] = ()
    sample: RankSample | None = None

    @property
    def start(self) -> tuple[str, int, int]:
        """This start of it: its role, number and generation."""
        return self.launch.role, self.launch.rank, self.launch.generation

    def ended_badly(self, now: float) -> Failure | None:
        """Why its process has ended, if it should not have, and it has not said so itself and is not going to."""
        exited = self.exited
        if exited is None or self.halted or self.failure is not None:
            return None
        if now < self.exited_at + EXIT_NOTICE_S and not exited.error and exited.signal is None:
            return None
        return describe_exit(
            exited.role, exited.rank, exited.exit_code, exited.signal, exited.error, exited.generation, exited.cause
        )

    def report(self) -> m.RankReport:
        """What its master is told of it."""
        hello, at = self.hello, self.sample
        progress = {name: getattr(at, name) for name in _PROGRESS} if at is not None else {}
        return m.RankReport(
            *self.start,
            self.state,
            pid=hello.pid if hello else 0,
            addresses=hello.addresses if hello else {},
            rendezvous_port=hello.rendezvous_port if hello else None,
            setup_s=self.setup_s,
            snapshots=self.snapshots,
            sha256=self.sha256,
            failure=self.failure,
            **progress,
        )


_PROGRESS = set(m.RankProgress.__struct_fields__) - set(m.OfRank.__struct_fields__)
