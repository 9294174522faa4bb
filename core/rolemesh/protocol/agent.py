"""The agent's side of the protocol: it forks ranks, speaks for them, and ends them.

`AgentMachine.handle` takes an event and the present time and returns effects, as `rolemesh.protocol.master` does.
An agent that has not heard its master for `lease_s` seconds ends its ranks and itself.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rolemesh.failures import Failure, describe_exit
from rolemesh.protocol import messages as m
from rolemesh.protocol.merge import MetricsMerger

__all__ = ["AgentMachine", "CleanUp", "Effect", "Event", "Fork", "Kill", "RankExited", "ToMaster", "ToRank"]

RankKey: TypeAlias = tuple[str, int]

HEARTBEAT_S = 1.0
PROMPT_S = 0.1
"""A heartbeat with progress is sent at most this often; without progress every `HEARTBEAT_S`."""
EXIT_NOTICE_S = 0.1
"""How long an exit waits for the rank's own report, which says more than an exit code."""


class FromMaster(msgspec.Struct, frozen=True):
    """The master's message."""

    message: m.MasterToAgent


class FromRank(msgspec.Struct, frozen=True):
    """A rank's message."""

    message: m.RankToAgent


class RankExited(msgspec.Struct, frozen=True):
    """A rank's process is gone. Exactly one of the two is set; `error` says why it could not be started at all."""

    role: str
    rank: int
    generation: int
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""


class Sampled(msgspec.Struct, frozen=True):
    """The boards have been read; time has passed."""

    positions: tuple[m.RankPosition, ...] = ()


Event: TypeAlias = FromMaster | FromRank | RankExited | Sampled


class Fork(msgspec.Struct, frozen=True):
    """Start a rank."""

    launch: m.RankLaunch


class ToRank(msgspec.Struct, frozen=True):
    """Deliver a message to a rank."""

    role: str
    rank: int
    message: m.AgentToRank


class ToMaster(msgspec.Struct, frozen=True):
    """Deliver a message to the master."""

    message: m.AgentToMaster


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL the process of a rank."""

    role: str
    rank: int


class CleanUp(msgspec.Struct, frozen=True):
    """All ranks are gone: remove the job's files from this node and end."""


Effect: TypeAlias = Fork | ToRank | ToMaster | Kill | CleanUp


class _Rank(msgspec.Struct):
    launch: m.RankLaunch
    alive: bool = True
    connected: bool = False
    reported: bool = False
    exited: RankExited | None = None
    exited_at: float = 0.0


class AgentMachine:
    """One node's part of one job, as a function of its events."""

    def __init__(self, agent: str, node: str, lease_s: float) -> None:
        self.agent = agent
        self.node = node
        self.ranks: dict[RankKey, _Rank] = {}
        self.stopping = False
        self.ended = False
        self._lease_s = lease_s
        self._epoch = -1
        self._heard = float("-inf")
        self._kill_at = float("inf")
        self._metrics = MetricsMerger()
        self._sent_at = float("-inf")
        self._sent: tuple[m.RankPosition, ...] = ()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of one event at time `now` (seconds of any monotonic clock)."""
        if self.ended:
            return []
        if self._heard == float("-inf"):
            self._heard = now
        match event:
            case FromMaster(message):
                return self._from_master(message, now)
            case FromRank(message):
                return self._from_rank(message)
            case RankExited():
                return self._exited(event, now)
            case Sampled(positions):
                return self._sampled(positions, now)

    def _from_master(self, message: m.MasterToAgent, now: float) -> list[Effect]:
        if message.epoch < self._epoch:
            return []
        self._epoch, self._heard = message.epoch, now
        match message:
            case m.Launch(ranks=launches):
                if self.stopping:
                    return []
                for launch in launches:
                    self.ranks[launch.role, launch.rank] = _Rank(launch)
                    self._metrics.expect(launch.role, launch.rank)
                return [Fork(launch) for launch in launches]
            case m.Wire(peers=peers, rendezvous=meetings):
                at = {meeting.role: meeting for meeting in meetings}
                return [
                    ToRank(role, n, m.WireRank(peers, at.get(role)))
                    for (role, n), rank in self.ranks.items()
                    if rank.connected
                ]
            case m.Grant() | m.Commit():
                return self._to_connected(message)
            case m.Stop(grace_s=grace_s):
                return self._stop(message, grace_s, now)

    def _to_connected(self, message: m.AgentToRank) -> list[Effect]:
        return [ToRank(role, n, message) for (role, n), rank in self.ranks.items() if rank.connected and rank.alive]

    def _stop(self, stop: m.Stop, grace_s: float, now: float) -> list[Effect]:
        self.stopping = True
        self._kill_at = min(self._kill_at, now + grace_s)
        if grace_s <= 0:
            return self._kill_all() + self._clean_up_if_empty()
        reached = self._to_connected(stop)
        unreachable: list[Effect] = [
            Kill(role, n) for (role, n), rank in self.ranks.items() if rank.alive and not rank.connected
        ]
        return reached + unreachable + self._clean_up_if_empty()

    def _kill_all(self) -> list[Effect]:
        return [Kill(role, n) for (role, n), rank in self.ranks.items() if rank.alive]

    def _clean_up_if_empty(self) -> list[Effect]:
        if not self.stopping or any(rank.alive for rank in self.ranks.values()):
            return []
        self.ended = True
        last = self._metrics.take()
        effects: list[Effect] = [ToMaster(m.Heartbeat(self.agent, (), last))] if last else []
        return [*effects, CleanUp(), ToMaster(m.Stopped(self.agent))]

    def _from_rank(self, message: m.RankToAgent) -> list[Effect]:
        match message:
            case m.RankMetrics(role=role, rank=n, generation=generation):
                if self._current(role, n, generation):
                    self._metrics.add(n, message.lines)
                return []
            case m.RankFailed(failure=failure):
                rank = self._current(failure.role, failure.rank, failure.generation)
                if rank is None or rank.reported:
                    return []
                rank.reported = True
                return [ToMaster(msgspec.structs.replace(message, failure=self._placed(failure)))]
            case m.RankHello(role=role, rank=n, generation=generation):
                rank = self._current(role, n, generation)
                if rank is None:
                    return []
                rank.connected = True
                if self.stopping:
                    return [Kill(role, n)]
                return [ToMaster(message)]
            case m.RankDone(role=role, rank=n, generation=generation):
                rank = self._current(role, n, generation)
                if rank is None:
                    return []
                rank.reported = True
                pending = self._metrics.take()
                effects: list[Effect] = [ToMaster(m.Heartbeat(self.agent, (), pending))] if pending else []
                return [*effects, ToMaster(message)]
            case m.RankReady(role=role, rank=n, generation=generation):
                return [ToMaster(message)] if self._current(role, n, generation) else []

    def _current(self, role: str, n: int, generation: int) -> _Rank | None:
        rank = self.ranks.get((role, n))
        return rank if rank is not None and rank.launch.generation == generation else None

    def _placed(self, failure: Failure) -> Failure:
        return msgspec.structs.replace(failure, node=self.node)

    def _exited(self, exited: RankExited, now: float) -> list[Effect]:
        rank = self._current(exited.role, exited.rank, exited.generation)
        if rank is None or not rank.alive:
            return []
        rank.alive = False
        rank.exited, rank.exited_at = exited, now
        return self._clean_up_if_empty()

    def _report_exits(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for rank in self.ranks.values():
            exited = rank.exited
            if exited is None or rank.reported or self.stopping:
                continue
            if now < rank.exited_at + EXIT_NOTICE_S and not exited.error and exited.signal is None:
                continue
            rank.reported = True
            failure = describe_exit(
                exited.role, exited.rank, exited.exit_code, exited.signal, exited.error, exited.generation
            )
            effects.append(ToMaster(m.RankFailed(self._placed(failure))))
        return effects

    def _sampled(self, positions: tuple[m.RankPosition, ...], now: float) -> list[Effect]:
        effects = self._report_exits(now)
        if now > self._heard + self._lease_s and not self.stopping:
            self.stopping = True
            return effects + self._kill_all() + self._clean_up_if_empty()
        if now >= self._kill_at:
            effects += self._kill_all()
        due = now >= self._sent_at + HEARTBEAT_S
        news = self._metrics.pending or [p.finished for p in positions] != [p.finished for p in self._sent]
        if due or (news and now >= self._sent_at + PROMPT_S):
            self._sent_at, self._sent = now, positions
            effects.append(ToMaster(m.Heartbeat(self.agent, positions, self._metrics.take())))
        return effects
