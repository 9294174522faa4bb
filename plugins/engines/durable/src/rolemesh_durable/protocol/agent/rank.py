"""A rank as its agent's machine knows it, and the steps of its life."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.events import RankExited, RankSample
from rolemesh_durable.protocol.extension_message import Sealed
from rolemesh_durable.protocol.failures import describe_exit
from rolemesh_durable.protocol.refs import OfStart, StartRef

__all__ = ["AgentRank", "RankRef", "last_states", "unknown"]

EXIT_NOTICE_S = 0.1
"""Seconds that an exit waits for the rank's own report, which says more than an exit code."""
LAST_WORD_S = 1.0
"""Seconds that an ending agent waits for a rank's last messages, which have its last lines of metrics."""


STEPS: dict[m.RankLife, tuple[m.RankLife, ...]] = {
    "fetching": ("queued", "failed", "gone"),
    "queued": ("starting", "gone"),
    "starting": ("up", "failing", "halting", "exited"),
    "up": ("ready", "ending", "failing", "halting", "exited"),
    "ready": ("done", "ending", "failing", "halting", "exited"),
    "done": ("ending", "failing", "halting", "exited"),
    "ending": ("failing", "halting", "ended"),
    "failing": ("halting", "failed"),
    "halting": ("gone",),
    "exited": ("ended", "failed", "gone"),
    "ended": ("failed", "gone"),
    "failed": ("gone",),
    "gone": (),
}
"""The allowed steps of a rank's life, which never goes back. The next start of the rank has a life of its own."""
OVER = ("exited", "ended", "failed", "gone")
"""The lives without a process, now and later."""
AFTER_EXIT: dict[m.RankLife, m.RankLife] = {"halting": "gone", "failing": "failed", "ending": "ended"}
"""The lives that follow when the process has ended; "exited" after all others."""


class AgentRank(msgspec.Struct):
    """One start of a rank of this agent."""

    launch: m.RankLaunch
    life: m.RankLife = "starting"
    before: tuple[m.RankLife, ...] = ()
    """The earlier stages of its life, oldest first."""
    next: m.RankLaunch | None = None
    """The launch that begins when this start is over."""
    hello: m.RankHello | None = None
    setup_s: float = 0.0
    sha256: str = ""
    verdict: str = ""
    kept: m.Persisted | None = None
    unkept: str = ""
    failure: Failure | None = None
    finish: str = ""
    finished: int = -1
    exited: RankExited | None = None
    exited_at: float = 0.0
    snapshots: tuple[int, ...] = ()
    sample: RankSample | None = None
    says: dict[str, Sealed] = msgspec.field(default_factory=dict)
    """The newest message of each class for the master."""
    heard: dict[str, Sealed] = msgspec.field(default_factory=dict)
    """The newest message of each class from the master."""
    heard_at: tuple[int, int] = (-1, -1)
    """The epoch and the version of the `Say` that they came with."""

    @property
    def start(self) -> StartRef:
        """The name of its present start."""
        return self.launch.start

    @property
    def alive(self) -> bool:
        """True if it has, or will soon have, a process."""
        return self.life not in OVER

    @property
    def reachable(self) -> bool:
        """True if messages reach its process."""
        return self.life in ("up", "ready", "done", "ending", "failing")

    def become(self, life: m.RankLife) -> None:
        """Take a step of its life. Raises `RuntimeError` with the life so far if `STEPS` does not allow it."""
        if life not in STEPS[self.life]:
            story = ", ".join((*self.before, self.life))
            raise RuntimeError(f"{self.start} cannot become {life}; its life so far: {story}. Please report this")
        self.before, self.life = (*self.before, self.life), life

    def nears_end(self, said: m.RankFinish | m.RankDone | m.RankEnds) -> None:
        """Note that it wants the job to finish, has finished its last step, or is torn down."""
        if isinstance(said, m.RankEnds):
            if self.life == "exited":
                self.become("ended")
            elif self.life in ("up", "ready", "done"):
                self.become("ending")
        elif isinstance(said, m.RankFinish):
            self.finish = self.finish or said.reason
        elif self.failure is None:
            self.sha256, self.finished, self.verdict = said.sha256, said.finished, said.verdict
            self.kept, self.unkept = said.kept, said.unkept
            if self.life == "ready":
                self.become("done")

    def fail(self, failure: Failure) -> None:
        """Note its first failure, unless it must end anyway."""
        if self.failure is None and self.life not in ("halting", "gone"):
            self.failure = failure
            self.become("failing" if self.alive and self.life != "fetching" else "failed")

    def hear(self, epoch: int, version: int, messages: Iterable[Sealed]) -> list[e.Effect]:
        """Take messages of the master, unless newer ones have come. Return the effects that pass on the new ones."""
        if (epoch, version) < self.heard_at:
            return []
        self.heard_at = epoch, version
        new = tuple(each for each in messages if self.heard.get(each.name) != each)
        self.heard |= {each.name: each for each in new}
        return self.passes_on(new)

    def passes_on(self, messages: Iterable[Sealed]) -> list[e.Effect]:
        """Return the effect that sends the rank these messages of the master; none if it cannot be reached yet."""
        messages = tuple(messages)
        return [e.ToRank(*self.launch.ref, m.MasterSays(messages))] if messages and self.reachable else []

    def ended_badly(self, now: float) -> Failure | None:
        """Return why its process has ended unexpectedly; None if the rank reports it itself, or may still do so."""
        exited = self.exited
        if exited is None or self.life not in ("exited", "ended"):
            return None
        if now < self.exited_at + EXIT_NOTICE_S and not exited.error and exited.signal is None:
            return None
        if exited.failure is not None:
            return exited.failure
        failure = describe_exit(
            exited.role, exited.rank, exited.exit_code, exited.signal, exited.error, exited.generation, exited.cause
        )
        return msgspec.structs.replace(failure, log_tail=exited.log_tail)

    def awaited(self, now: float) -> bool:
        """Return True if its process has ended and its last message, which follows all others, has not come yet."""
        exited = self.exited
        if exited is None or exited.error or exited.signal is not None or self.hello is None:
            return False
        return self.life == "exited" and now < self.exited_at + LAST_WORD_S

    def report(self) -> m.RankReport:
        """Return the rank's report for the master."""
        hello, at = self.hello, self.sample
        progress = {name: getattr(at, name) for name in _PROGRESS} if at is not None else {}
        progress["finished"] = max(progress.get("finished", -1), self.finished)  # the sample may be older
        progress["layout"] = max(progress.get("layout", 0), self.launch.layout.number)
        return m.RankReport(
            *self.start,
            self.life,
            pid=hello.pid if hello else 0,
            addresses=hello.addresses if hello else {},
            rendezvous_port=hello.rendezvous_port if hello else None,
            setup_s=self.setup_s,
            snapshots=self.snapshots,
            sha256=self.sha256,
            failure=self.failure,
            finish=self.finish,
            verdict=self.verdict,
            says=tuple(self.says.values()),
            **progress,
        )


_PROGRESS = set(m.RankProgress.__struct_fields__) - set(OfStart.__struct_fields__)


def last_states(ranks: Iterable[AgentRank]) -> tuple[list[m.Persisted], str, int]:
    """Return the last states that ranks have written, why some are missing, and the step for which none are written."""
    ranks = list(ranks)
    without = [rank for rank in ranks if rank.unkept]
    kept = [rank.kept for rank in ranks if rank.kept is not None]
    return kept, "; ".join(rank.unkept for rank in without[:1]), max((rank.finished for rank in without), default=-1)


def unknown(role: str, rank: int) -> m.RankLaunch:
    """Return a launch for a rank that was never started here."""
    return m.RankLaunch(role, rank, 1, 0, 1, -1)
