"""The agent's side of the protocol: it starts, watches and kills ranks, speaks for them, and hears its master.

`AgentMachine.handle` takes an event and the present time and returns effects, as the master's machine does. What it
knows it reports whole, at once when something has changed and every second; what it is told to do it does once. An
agent that has not heard its master for `lease_s` seconds ends its ranks and itself, unless the backend, which it has
asked after half of that, says that there is a master or will be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.failures import Failure, describe_exit
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent_events import (
    BoardSample,
    CleanUp,
    Effect,
    Event,
    Fail,
    Fetch,
    Fetched,
    Forget,
    Fork,
    FromMaster,
    FromRank,
    Kill,
    Leave,
    MasterRevived,
    Quit,
    RankDied,
    RankExited,
    ReviveMaster,
    Sampled,
    StacksTaken,
    TakeStacks,
    Terminate,
    Tick,
    ToMaster,
    ToRank,
)
from rolemesh_durable.protocol.merge import MetricsMerger
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.pacing import AT_ONCE, Pace

__all__ = [
    "AgentMachine",
    "BoardSample",
    "CleanUp",
    "Effect",
    "Event",
    "Fail",
    "Fetch",
    "Fetched",
    "Forget",
    "Fork",
    "FromMaster",
    "FromRank",
    "Kill",
    "Leave",
    "MasterRevived",
    "Quit",
    "RankDied",
    "RankExited",
    "ReviveMaster",
    "Sampled",
    "StacksTaken",
    "TakeStacks",
    "Terminate",
    "Tick",
    "ToMaster",
    "ToRank",
]

RankKey: TypeAlias = tuple[str, int]

REPORT_S = 1.0
PROMPT_S = 0.1
"""A report of mere progress is sent at most this often; without any every `REPORT_S`; what happens is sent at once."""
PER_RANK_S = 200e-6
"""But for each rank that a report tells of, so long passes before the next: many ranks come and go together."""
EXIT_NOTICE_S = 0.1
"""How long an exit waits for the rank's own report, which says more than an exit code."""
TERMINATE_SHARE = 0.5
"""Of the time that a rank has to stop: after this share of it the operator that it is in gets a SIGTERM."""
LEAVE_S = 20.0
"""How long an agent that was told to end waits for its master to bring its ranks elsewhere: a node that is drained, or
taken back, usually has half a minute."""
METRICS_AGAIN_S = 2.0
"""After this metrics that the master has not confirmed are sent again."""


_State: TypeAlias = Literal["starting", "up", "ready", "done", "failed", "gone"]


class _Rank(msgspec.Struct):
    """`alive`: there is, or is about to be, a process. `halted`: it is to be none, however it ends."""

    launch: m.RankLaunch
    state: _State = "starting"
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
    board: BoardSample | None = None


class AgentMachine:
    """One node's part of one job, as a function of its events."""

    def __init__(
        self,
        agent: str,
        node: str,
        lease_s: float,
        *,
        incarnation: int = 0,
        host: str = "",
        pid: int = 0,
        address: str = "",
        timeline: int = 0,
        neighbours: Neighbours | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        """`timeline` is that of what the node's memory holds already: of the last `Forget` there."""
        self.agent, self.node, self.incarnation = agent, node, incarnation
        self.ranks: dict[RankKey, _Rank] = {}
        self.stopping = False
        self.ended = False
        self._host, self._pid, self._address = host, pid, address
        self._lease_s = lease_s
        self._epoch = -1
        self._timeline = timeline
        self._heard = float("-inf")
        self._revived = self._promised = float("-inf")
        self._asking = False
        self._kill_at = self._terminate_at = self._quit_at = float("inf")
        self._halted: dict[RankKey, int] = {}
        self.advance: m.Advance | None = None
        """How far everything is, in the present timeline."""
        self.wired = -1
        """The newest version of who is where."""
        self.copies_to = ""
        """The address of the agent that gets copies of this one's snapshots."""
        self._neighbours = neighbours or Neighbours(LogicalGraph("", (), ()), {})
        self._forks: Pace[tuple[str, int, int]] = Pace(at_once)
        """From the order to the rank's hello."""
        self._set_ups: Pace[tuple[str, int, int]] = Pace(at_once)
        """From being told of its neighbours to being ready."""
        self._peers: dict[RankKey, m.Peer] = {}
        self._meetings: dict[str, m.RendezvousAt] = {}
        self._metrics = MetricsMerger()
        self._metrics_sent = float("-inf")
        self._seq = 0
        self._sent_at = float("-inf")
        self._sent: tuple[object, ...] = ()
        self._urgent = True
        self._last = Sampled()

    @property
    def timeline(self) -> int:
        """Of all that is made in this node's memory from now on."""
        return self._timeline

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of one event at time `now` (seconds of any monotonic clock)."""
        if self.ended:
            return []
        if self._heard == float("-inf"):
            self._heard = now
        match event:
            case FromMaster(message):
                effects = self._from_master(message, now)
            case MasterRevived(comes):
                self._asking = False
                self._promised = now if comes else float("-inf")
                return []
            case Leave():
                if self._quit_at == float("inf"):
                    self._quit_at, self._urgent = now + LEAVE_S, True
                effects = []
            case FromRank(message):
                effects = self._from_rank(message)
            case RankExited():
                effects = self._exited(event, now)
            case Fetched():
                effects = self._fetched(event)
            case StacksTaken(stacks):
                return [ToMaster(stacks)]
            case Sampled():
                effects = self._sampled(event, now)
            case Tick():
                effects = []
        return effects + self._let_go(now) + self._report(now)

    def _let_go(self, now: float) -> list[Effect]:
        """Of the ranks that are to start, and of those that are to set up, as many as may now."""
        effects: list[Effect] = []
        for role, n, generation in () if self.ended else self._forks.go(now):
            rank = self._current(role, n, generation)
            if rank is not None and rank.alive:
                effects.append(Fork(rank.launch))
        for role, n, generation in () if self.ended else self._set_ups.go(now):
            rank = self._current(role, n, generation)
            if rank is not None:
                effects += self._wire((role, n), rank, self._peers)
        return effects

    @property
    def report_due(self) -> float:
        """When something that has happened is to be told: infinity, if nothing has."""
        return self._sent_at + PER_RANK_S * len(self.ranks) if self._urgent and not self.ended else float("inf")

    # ---------------------------------------------------------------------------------------------------- the master

    def _from_master(self, message: m.MasterToAgent, now: float) -> list[Effect]:
        if message.epoch < self._epoch:
            return []
        if message.epoch > self._epoch:
            self._epoch, self._urgent = message.epoch, True
            self._metrics_sent = float("-inf")
        self._heard, self._asking = now, False
        match message:
            case m.Launch(timeline=timeline, ranks=launches):
                effects = self._new_timeline(timeline)
                for launch in launches if timeline >= self._timeline else ():
                    effects += self._launch(launch)
                return effects
            case m.Halt(ranks=halted):
                return [effect for role, n, generation in halted for effect in self._halt(role, n, generation)]
            case m.Wire():
                return self._rewire(message)
            case m.Advance(timeline=timeline):
                if timeline < self._timeline:
                    return []
                effects = self._new_timeline(timeline)
                self._metrics.forget(message.published)
                self.advance = _newest(self.advance, message)
                return effects + self._to_connected(self.advance)
            case m.Dump(role=role, rank=n, generation=generation):
                rank = self._current(role, n, generation)
                return [TakeStacks(role, n, generation)] if rank is not None and rank.alive else []
            case m.Inject(kind=kind, role=role, rank=n):
                return self._inject(kind, role, n)
            case m.Stop(grace_s=grace_s):
                return self._stop(message, grace_s, now)

    def _new_timeline(self, timeline: int) -> list[Effect]:
        if timeline <= self._timeline:
            return []
        self._timeline = timeline
        self.advance = None
        # No report says any more that it is here: a rank that comes back must not be restored from it.
        for rank in self.ranks.values():
            rank.snapshots = ()
        self._last = msgspec.structs.replace(self._last, stored=(), persisted=())
        return [Forget(timeline)]

    def _launch(self, launch: m.RankLaunch) -> list[Effect]:
        key = (launch.role, launch.rank)
        known = self.ranks.get(key)
        if self.stopping or launch.generation <= self._halted.get(key, -1):
            return []
        if known is not None and launch.generation <= known.launch.generation:
            return []
        self._urgent = True
        if known is not None and known.alive:
            # The master would have halted it first; it is on its way out, or this order has overtaken that one.
            known.next = launch
            return self._halt(*key, known.launch.generation, orders=False)
        return self._begin(launch)

    def _begin(self, launch: m.RankLaunch) -> list[Effect]:
        self.ranks[launch.role, launch.rank] = _Rank(launch, alive=True)
        self._metrics.expect(launch.role, launch.rank)
        return [Fetch(launch)] if launch.replica else self._fork(launch)

    def _fork(self, launch: m.RankLaunch) -> list[Effect]:
        self._forks.add((launch.role, launch.rank, launch.generation))
        return []

    def _fetched(self, fetched: Fetched) -> list[Effect]:
        rank = self._current(fetched.role, fetched.rank, fetched.generation)
        if rank is None or not rank.alive or rank.state != "starting":
            return []
        if not fetched.error and not rank.halted:
            return self._fork(rank.launch)
        if fetched.error and not rank.halted:
            rank.state, self._urgent = "failed", True
            rank.failure = self._placed(
                Failure("start", fetched.role, fetched.rank, message=fetched.error, generation=fetched.generation)
            )
        return self._process_gone(rank)

    def _halt(self, role: str, n: int, generation: int, *, orders: bool = True) -> list[Effect]:
        key = (role, n)
        if orders:
            self._halted[key] = max(generation, self._halted.get(key, -1))
        rank = self.ranks.get(key)
        self._urgent = True
        if rank is None or rank.launch.generation <= generation:
            self._metrics.leave(role, n)
        if rank is None or (orders and rank.launch.generation < generation and not rank.alive):
            # Never started here: what its last generation has left is in `stored`.
            last = rank.launch if rank is not None else _unknown(role, n)
            snapshots = rank.snapshots if rank is not None else self._stored(key)
            self.ranks[key] = _Rank(msgspec.structs.replace(last, generation=generation), "gone", snapshots=snapshots)
            return []
        if rank.launch.generation > generation:
            return []
        rank.halted = True
        if orders and rank.next is not None and rank.next.generation <= generation:
            rank.next = None
        if not rank.alive:
            rank.state = "gone"
            return []
        return self._kill(key, rank)

    def _kill(self, key: RankKey, rank: _Rank) -> list[Effect]:
        if (*key, rank.launch.generation) not in self._forks:
            return [Kill(*key, rank.launch.generation)]
        rank.halted, rank.snapshots = True, self._stored(key)  # it has not been started, and is not going to be
        return self._process_gone(rank)

    def _stored(self, key: RankKey) -> tuple[int, ...]:
        return next((s.steps for s in self._last.stored if (s.role, s.rank) == key and not s.copy), ())

    def _rewire(self, wire: m.Wire) -> list[Effect]:
        if wire.version <= self.wired or wire.since > self.wired:
            return []
        self.wired, self.copies_to, self._urgent = wire.version, wire.copies_to, True
        told = {(peer.role, peer.rank): peer for peer in wire.peers}
        new = {key: peer for key, peer in told.items() if self._peers.get(key) != peer}
        self._peers |= new
        self._meetings |= {meeting.role: meeting for meeting in wire.rendezvous}
        effects: list[Effect] = []
        for key, rank in self.ranks.items():
            if key in new:
                self._set_ups.add((*key, rank.launch.generation))
            elif (*key, rank.launch.generation) not in self._set_ups:
                effects += self._wire(key, rank, new)
        return effects

    def _wire(self, key: RankKey, rank: _Rank, new: Mapping[RankKey, m.Peer]) -> list[Effect]:
        """Tell a rank of those of the `new` places that are its neighbours'."""
        mine = self._peers.get(key)
        if mine is None or mine.generation != rank.launch.generation or not rank.alive or not rank.hello:
            return []  # made before this generation was up; another one follows
        neighbours = self._neighbours.of(key, rank.launch.collective)
        if not (fresh := tuple(new[peer] for peer in sorted(neighbours & new.keys()))):
            return []
        return [ToRank(*key, m.WireRank(fresh, self._meetings.get(key[0])))]

    def _to_connected(self, message: m.AgentToRank) -> list[Effect]:
        return [ToRank(role, n, message) for (role, n), rank in self.ranks.items() if rank.hello and rank.alive]

    def _inject(self, kind: m.FaultKind, role: str, n: int) -> list[Effect]:
        if n < 0:
            return [Fail(kind)]
        rank = self.ranks.get((role, n))
        if rank is None or not rank.alive or rank.halted:
            return []
        if kind in ("exit", "raise"):
            fault: Literal["exit", "raise"] = "exit" if kind == "exit" else "raise"
            return [ToRank(role, n, m.Fault(fault))] if rank.hello else []
        return [Fail(kind, role, n)]

    def _stop(self, stop: m.Stop, grace_s: float, now: float) -> list[Effect]:
        again = self.stopping
        self.stopping = True
        self._kill_at = min(self._kill_at, now + grace_s)
        if again:
            return []
        if grace_s <= 0:
            return self._kill_all() + self._clean_up_if_empty()
        self._terminate_at = now + TERMINATE_SHARE * grace_s
        return self._to_connected(stop) + self._kill_all(unheard=True) + self._clean_up_if_empty()

    def _kill_all(self, unheard: bool = False) -> list[Effect]:
        """Kill all that live, or those of them that cannot be told to end."""
        alive = [(key, rank) for key, rank in self.ranks.items() if rank.alive and not (unheard and rank.hello)]
        return [effect for key, rank in alive for effect in self._kill(key, rank)]

    def _clean_up_if_empty(self) -> list[Effect]:
        if self.ended or not self.stopping or any(rank.alive for rank in self.ranks.values()):
            return []
        last = self._build(self._metrics.lines())
        self.ended = True
        return [ToMaster(last), CleanUp(), ToMaster(m.Stopped(self.agent, self.incarnation))]

    # -------------------------------------------------------------------------------------------------------- ranks

    def _from_rank(self, message: m.RankToAgent) -> list[Effect]:
        who = message.failure if isinstance(message, m.RankFailed) else message
        rank = self._current(who.role, who.rank, who.generation)
        if rank is None:
            return []
        if isinstance(message, m.RankMetrics):
            self._metrics.add(message.rank, message.lines)
            return []
        self._urgent = True
        key = (who.role, who.rank)
        match message:
            case m.RankHello():
                rank.hello = message
                self._forks.arrived((*key, rank.launch.generation))
                if self.stopping or rank.halted:
                    return self._kill(key, rank)
                rank.state = "up" if rank.state == "starting" else rank.state
                return [ToRank(*key, self.advance)] if self.advance is not None else []
            case m.RankReady(setup_s=setup_s):
                self._set_ups.arrived((*key, rank.launch.generation))
                if rank.state in ("starting", "up"):
                    rank.state, rank.setup_s = "ready", setup_s
            case m.RankDone(sha256=sha256):
                if rank.state != "failed":
                    rank.state, rank.sha256 = "done", sha256
            case m.RankFailed(failure=failure):
                if rank.failure is None and not rank.halted:
                    rank.state, rank.failure = "failed", self._placed(failure)
        return []

    def _current(self, role: str, n: int, generation: int) -> _Rank | None:
        rank = self.ranks.get((role, n))
        return rank if rank is not None and rank.launch.generation == generation else None

    def _placed(self, failure: Failure) -> Failure:
        return msgspec.structs.replace(failure, node=self.node)

    def _exited(self, exited: RankExited, now: float) -> list[Effect]:
        rank = self._current(exited.role, exited.rank, exited.generation)
        if rank is None or not rank.alive:
            return []
        rank.exited, rank.exited_at, rank.snapshots = exited, now, exited.snapshots
        return self._process_gone(rank)

    def _process_gone(self, rank: _Rank) -> list[Effect]:
        rank.alive = False
        self._urgent = True
        launch = rank.launch
        self._forks.arrived((launch.role, launch.rank, launch.generation))
        self._set_ups.arrived((launch.role, launch.rank, launch.generation))
        effects: list[Effect] = [] if self.stopping or rank.state == "done" else [RankDied(launch.role, launch.rank)]
        if rank.halted:
            rank.state = "gone"
        following = rank.next
        if (
            following is not None
            and not self.stopping
            and following.generation > self._halted.get((launch.role, launch.rank), -1)
        ):
            return effects + self._begin(following)
        return effects + self._clean_up_if_empty()

    def _judge_exits(self, now: float) -> None:
        for rank in self.ranks.values():
            exited = rank.exited
            if exited is None or rank.halted or rank.failure is not None or self.stopping:
                continue
            if now < rank.exited_at + EXIT_NOTICE_S and not exited.error and exited.signal is None:
                continue
            rank.state, self._urgent = "failed", True
            rank.failure = self._placed(
                describe_exit(
                    exited.role,
                    exited.rank,
                    exited.exit_code,
                    exited.signal,
                    exited.error,
                    exited.generation,
                    exited.cause,
                )
            )

    def _sampled(self, sample: Sampled, now: float) -> list[Effect]:
        for board in sample.boards:
            rank = self._current(board.role, board.rank, board.generation)
            if rank is not None:
                rank.board = board
        if sample.stored != self._last.stored or sample.persisted != self._last.persisted:
            self._urgent = True
        told = (sample.trouble, sample.making) == (self._last.trouble, self._last.making)
        self._urgent = self._urgent or not told
        self._last = sample
        self._judge_exits(now)
        effects: list[Effect] = []
        asked = self._revived > self._heard
        if asked and now > max(self._heard, self._promised) + self._lease_s and not self.stopping:
            self.stopping = True
            return self._kill_all() + self._clean_up_if_empty()
        silent = now > max(self._heard, self._revived) + self._lease_s / 2
        if silent and not self._asking and not self.stopping:
            # Until the answer is there, which takes a while on a busy machine, it counts as a yes.
            self._revived = self._promised = now
            self._asking = True
            effects.append(ReviveMaster())
        if now >= self._kill_at:
            effects += self._kill_all()
        elif now >= self._terminate_at:
            self._terminate_at = float("inf")
            patience_s = TERMINATE_SHARE * (self._kill_at - now)
            alive = [(key, rank.launch.generation) for key, rank in self.ranks.items() if rank.alive]
            effects += [Terminate(*key, generation, patience_s) for key, generation in alive]
        if now >= self._quit_at and not self.stopping:
            effects.append(Quit())
        return effects

    # ------------------------------------------------------------------------------------------------------- reports

    def _report(self, now: float) -> list[Effect]:
        if self.ended:
            return []
        progress = tuple(
            (rank.board.finished, rank.board.safe) for rank in self.ranks.values() if rank.board is not None
        )
        news = progress != self._sent or self._metrics.pending
        due = now >= self._sent_at + REPORT_S or (news and now >= self._sent_at + PROMPT_S)
        if not due and now < self.report_due:
            return []
        self._sent_at, self._sent, self._urgent = now, progress, False
        again = now >= self._metrics_sent + METRICS_AGAIN_S
        lines = self._metrics.lines() if again else self._metrics.take()
        if again:
            self._metrics_sent = now
        return [ToMaster(self._build(lines))]

    def _build(self, lines: tuple[m.Metrics, ...]) -> m.Report:
        self._seq += 1
        return m.Report(
            self.agent, self.incarnation, self._seq, self.node, self._host, self._pid, self._address, self._epoch,
            self.wired,
            tuple(self._seen(key, rank) for key, rank in self.ranks.items()),
            self._last.stored, self._last.persisted, lines, self._last.trouble, self._timeline,
            self._last.making, self._last.refused, self._last.given_up, self._quit_at < float("inf"),
        )  # fmt: skip

    def _seen(self, key: RankKey, rank: _Rank) -> m.RankReport:
        hello, board = rank.hello, rank.board
        at: dict[str, object] = {}
        if board is not None:
            at = {name: getattr(board, name) for name in _FROM_BOARD}
        return m.RankReport(
            *key,
            rank.launch.generation,
            rank.state,
            pid=hello.pid if hello else 0,
            addresses=hello.addresses if hello else {},
            rendezvous_port=hello.rendezvous_port if hello else None,
            setup_s=rank.setup_s,
            snapshots=rank.snapshots,
            sha256=rank.sha256,
            failure=rank.failure,
            **at,  # type: ignore[arg-type]
        )


_FROM_BOARD = ("finished", "safe", "step", "op", "phase", "edge", "since_s", "frozen", "busy_s")


def _newest(known: m.Advance | None, message: m.Advance) -> m.Advance:
    """What both say together: these numbers never go back in one timeline, and one may have overtaken the other."""
    if known is None:
        return message
    return msgspec.structs.replace(
        message, **{name: max(getattr(known, name), getattr(message, name)) for name in _NUMBERS}
    )


_NUMBERS = ("epoch", "granted", "committed", "published", "persisted")


def _unknown(role: str, n: int) -> m.RankLaunch:
    return m.RankLaunch(role, n, 1, 0, 1, -1, {}, {})
