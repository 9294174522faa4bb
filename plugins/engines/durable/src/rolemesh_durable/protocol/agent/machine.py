"""The agent's side of the protocol: it starts, watches and kills ranks, and connects them with the master.

`AgentMachine.handle` takes an event and the present time and returns effects, as the master's machine does. The agent
reports its whole state every second, and at once when something has changed. It carries out each command once. Without
a message of its master for `lease_s` seconds it ends its ranks and itself. After half of that it asks the backend, and
lives on if the backend says that there is a master or will be one.
"""

from __future__ import annotations

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.address_book import AddressBook
from rolemesh_durable.protocol.agent.lifetime import Lifetime
from rolemesh_durable.protocol.agent.rank import AFTER_EXIT, AgentRank, last_states, unknown
from rolemesh_durable.protocol.agent.reporting import Identity, Reporting
from rolemesh_durable.protocol.agent.start_queue import AT_ONCE, StartQueue
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["AgentMachine"]


class AgentMachine:
    """One node's part of one job, as a function of its events."""

    def __init__(
        self, who: Identity, lease_s: float, neighbours: Neighbours, left: e.Left = e.NOTHING, at_once: int = AT_ONCE
    ) -> None:
        """Adopt the ranks in `left`, of an earlier incarnation. Every report includes them."""
        self.who = who
        self.ranks: dict[RankRef, AgentRank] = {}
        self.ended = False
        self.lifetime = Lifetime(lease_s)
        self.addresses = AddressBook(neighbours, at_once)
        self._reporting = Reporting(who)
        self._epoch = -1
        self._timeline = left.timeline
        self._halted: dict[RankRef, int] = {}
        self.advance: m.Watermarks | None = None
        """The newest progress of the job, in the present timeline."""
        self._forks: StartQueue[StartRef] = StartQueue(at_once)
        """The ranks between their start order and their hello."""
        self._granted = max((rank.granted for rank in left.ranks), default=-1)
        """The newest step that earlier incarnations have let ranks run."""
        self._last = e.Sampled()
        self._first = [effect for rank in left.ranks for effect in self._adopt(rank)]
        """Effects for adopted ranks, due in the first turn."""

    @property
    def timeline(self) -> int:
        """The timeline of all that is made in this node's memory from now on."""
        return self._timeline

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """Return the effects of one event at time `now` (seconds of any monotonic clock)."""
        if self.ended:
            return []
        self.lifetime.begin(now)
        first, self._first = self._first, []
        return [*first, *self._handle(event, now)]

    def _handle(self, event: e.Event, now: float) -> list[e.Effect]:
        effects: list[e.Effect] = []
        match event:
            case e.FromMaster(message) if message.epoch < self._epoch:
                return []
            case e.FromMaster(message):
                effects = self._from_master(message, now)
            case e.MasterRevived(comes):
                self.lifetime.answered(comes, now)
                return []
            case e.Leave():
                self.lifetime.leave(now)
                self._news()
            case e.FromRank(message):
                effects = self._from_rank(message)
            case e.RankExited():
                effects = self._exited(event, now)
            case e.Fetched():
                effects = self._fetched(event)
            case m.FromPart():
                return [e.ToMaster(event)]
            case e.Sampled():
                effects = self._sampled(event, now)
        effects += self._clean_up_if_empty(now)
        if self.ended:
            return effects
        effects += self._let_go(now)
        if self._reporting.due(self.ranks, now):
            effects.append(e.ToMaster(self._report(self._reporting.lines(now))))
        return effects

    def _let_go(self, now: float) -> list[e.Effect]:
        """Start and set up as many of the waiting ranks as may go now."""
        starting = [self.ranks[start.ref] for start in self._forks.go(now)]
        for rank in starting:
            rank.become("starting")
        return [*(e.Fork(rank.launch) for rank in starting), *self.addresses.go(self.ranks, now)]

    @property
    def report_due(self) -> float:
        """Return when the next news must be reported; infinity if there is none."""
        return float("inf") if self.ended else self._reporting.news_due(len(self.ranks))

    def _news(self) -> None:
        self._reporting.urgent = True

    def _report(self, lines: tuple[m.Metrics, ...]) -> m.Report:
        at, book = self._last, self.addresses
        kept, unkept, given_up = last_states(self.ranks.values())
        return self._reporting.build(
            epoch=self._epoch, wired=book.version, ranks=tuple(rank.report() for rank in self.ranks.values()),
            stored=at.stored, persisted=(*at.persisted, *kept), metrics=lines, warning=at.warning or unkept,
            timeline=self._timeline, making=at.making, refused=at.refused, given_up=max(at.given_up, given_up),
            leaving=self.lifetime.leaving, address=at.address, parts=at.parts,
            granted=max(self._granted, self.advance.granted if self.advance is not None else -1),
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------------- the master

    def _from_master(self, message: m.MasterToAgent, now: float) -> list[e.Effect]:
        if message.epoch > self._epoch:
            self._epoch = message.epoch
            self._reporting.new_master()
        self.lifetime.heard(now)
        if getattr(message, "timeline", -1) > self._timeline and any(rank.alive for rank in self.ranks.values()):
            # These ranks were adopted while the job went back to disk. Repeat this until they are gone.
            return [effect for rank in list(self.ranks.values()) for effect in self._halt(rank.start, orders=False)]
        effects = self.addresses.learn(getattr(message, "layout", self.addresses.layout))
        match message:
            case m.Launch(timeline=timeline, ranks=launches):
                effects += self._new_timeline(timeline)
                for launch in launches if timeline >= self._timeline else ():
                    effects += self._launch(launch)
            case m.Halt(ranks=halted):
                return [effect for start in halted for effect in self._halt(start)]
            case m.Addresses():
                before = self.addresses.version
                effects += self.addresses.renew(message, self.ranks)
                self._reporting.urgent |= self.addresses.version > before
            case m.Watermarks(timeline=timeline):
                if timeline < self._timeline:
                    return effects
                effects += self._new_timeline(timeline)
                self._reporting.metrics.forget(message.published)
                self.advance = message.after(self.advance)
                return effects + self._to_connected(self.advance)
            case m.ToPart():
                return [message]
            case m.Say(version=version, ranks=ranks):
                known = ((rank, each.says) for each in ranks if (rank := self._current(each.start)) is not None)
                return effects + [effect for rank, says in known for effect in rank.hear(message.epoch, version, says)]
            case m.Stop(grace_s=grace_s):
                return self._stop(message, grace_s, now)
        return effects

    def _new_timeline(self, timeline: int) -> list[e.Effect]:
        if timeline <= self._timeline:
            return []
        self._timeline, self.advance = timeline, None
        # Reports no longer name this memory, so that no rank is restored from it.
        for rank in self.ranks.values():
            rank.snapshots = ()
        self._last = msgspec.structs.replace(self._last, stored=(), persisted=())
        return [e.Forget(timeline)]

    def _launch(self, launch: m.RankLaunch) -> list[e.Effect]:
        key = launch.ref
        known = self.ranks.get(key)
        if self.lifetime.stopping or launch.generation <= self._halted.get(key, -1):
            return []
        if known is not None and launch.generation <= known.launch.generation:
            return []
        self._news()
        if known is not None and known.alive:
            # The master halts it before a new start. It is about to end, or this order has overtaken the halt.
            known.next = launch
            return self._halt(known.start, orders=False)
        return self._begin(launch)

    def _begin(self, launch: m.RankLaunch) -> list[e.Effect]:
        life: m.RankLife = "fetching" if launch.replica else "queued"
        self.ranks[launch.ref] = AgentRank(launch, life, snapshots=self._stored(launch.ref))
        self._reporting.metrics.expect(*launch.ref)
        effects: list[e.Effect] = [*self.addresses.learn(launch.layout)]
        if launch.replica:
            return [*effects, e.Fetch(launch)]
        self._forks.add(launch.start)
        return effects

    def _fetched(self, fetched: e.Fetched) -> list[e.Effect]:
        rank = self._current(fetched.start)
        if rank is None or rank.life != "fetching":
            return []
        if not fetched.error:
            rank.become("queued")
            self._forks.add(rank.start)
            return []
        rank.fail(self._placed(Failure("start", *rank.start.ref, message=fetched.error, generation=fetched.generation)))
        return self._process_gone(rank)

    def _halt(self, start: StartRef, *, orders: bool = True) -> list[e.Effect]:
        key, generation = start.ref, start.generation
        if orders:
            self._halted[key] = max(generation, self._halted.get(key, -1))
        rank = self.ranks.get(key)
        self._news()
        if rank is None or rank.launch.generation <= generation:
            self._reporting.metrics.leave(*key)
        if rank is None or (orders and rank.launch.generation < generation and not rank.alive):
            # The rank was never started here, or not in this generation.
            last = msgspec.structs.replace(rank.launch if rank else unknown(*key), generation=generation)
            self.ranks[key] = AgentRank(last, "gone", snapshots=self._stored(key))
            return []
        if rank.launch.generation > generation:
            return []
        if orders and rank.next is not None and rank.next.generation <= generation:
            rank.next = None
        if rank.life in ("exited", "ended", "failed"):
            rank.become("gone")
        if not rank.alive:
            return []
        if rank.life not in ("fetching", "queued", "halting"):
            rank.become("halting")
        return self._kill(rank)

    def _kill(self, rank: AgentRank) -> list[e.Effect]:
        if rank.life not in ("fetching", "queued"):
            return [e.Kill(*rank.start)]
        rank.snapshots = self._stored(rank.start.ref)  # it was not started, and will not be
        rank.become("gone")
        return self._process_gone(rank)

    def _stored(self, key: RankRef) -> tuple[int, ...]:
        """Return the steps in memory of a rank without a process, of an earlier incarnation and of this one."""
        before = next((s.steps for s in self._last.stored if s.ref == key and not s.copy), ())
        return tuple(sorted({*before, *(self.ranks[key].snapshots if key in self.ranks else ())}))

    def _to_connected(self, message: m.AgentToRank) -> list[e.Effect]:
        return [e.ToRank(role, n, message) for (role, n), rank in self.ranks.items() if rank.reachable]

    def _stop(self, stop: m.Stop, grace_s: float, now: float) -> list[e.Effect]:
        if not self.lifetime.stop(grace_s, now, stop.patient):
            return []
        told = self._to_connected(stop) if grace_s > 0 else []
        return told + self._kill_all(unheard=grace_s > 0)

    def _kill_all(self, unheard: bool = False) -> list[e.Effect]:
        """Kill all living ranks, or with `unheard` only those that no message reaches."""
        alive = [rank for rank in self.ranks.values() if rank.alive and not (unheard and rank.reachable)]
        return [effect for rank in alive for effect in self._kill(rank)]

    def _clean_up_if_empty(self, now: float) -> list[e.Effect]:
        if self.ended or not self.lifetime.stopping or any(r.alive or r.awaited(now) for r in self.ranks.values()):
            return []
        last = self._report(self._reporting.metrics.lines())
        self.ended = True
        return [e.ToMaster(last), e.CleanUp(), e.ToMaster(m.Stopped(self.who.agent, self.who.incarnation))]

    # -------------------------------------------------------------------------------------------------------- ranks

    def _from_rank(self, message: m.RankToAgent) -> list[e.Effect]:
        who = message.failure if isinstance(message, m.RankFailed) else message
        rank = self._current(StartRef(who.role, who.rank, who.generation))
        if rank is None:
            return []
        if isinstance(message, m.RankMetrics | m.RankSays):
            self._reporting.take(rank, message)
            return []
        self._news()
        key = who.ref
        match message:
            case m.RankHello():
                rank.hello = message
                self._forks.arrived(rank.start)
                if rank.alive and (self.lifetime.stopping or rank.life == "halting"):
                    return self._kill(rank)
                if rank.life == "starting":
                    rank.become("up")
                known = [e.ToRank(*key, self.advance)] if self.advance is not None else []
                return [*known, *rank.passes_on(rank.heard.values())]
            case m.RankReady(setup_s=setup_s):
                self.addresses.settled(rank)
                if rank.life == "up":
                    rank.setup_s = setup_s
                    rank.become("ready")
            case m.RankFinish() | m.RankDone() | m.RankEnds():
                rank.nears_end(message)
            case m.RankFailed(failure=failure):
                rank.fail(self._placed(failure))
        return []

    def _adopt(self, found: e.Found) -> list[e.Effect]:
        """Adopt a rank that an earlier incarnation started."""
        launch = found.launch
        self.ranks[launch.ref] = AgentRank(launch)
        self._reporting.metrics.expect(launch.role, launch.rank)
        learnt = self.addresses.learn(launch.layout)
        for message in found.said:
            self._from_rank(message)
        if found.exited is not None:
            return [*learnt, *self._exited(found.exited, float("-inf"))]
        return [*learnt, e.ToRank(launch.role, launch.rank, m.Adopted(self.who.incarnation))]

    def _current(self, start: StartRef) -> AgentRank | None:
        rank = self.ranks.get(start.ref)
        return rank if rank is not None and rank.launch.generation == start.generation else None

    def _placed(self, failure: Failure) -> Failure:
        return msgspec.structs.replace(failure, node=self.who.node)

    def _exited(self, exited: e.RankExited, now: float) -> list[e.Effect]:
        rank = self._current(exited.start)
        if rank is None or not rank.alive:
            return []
        rank.exited, rank.exited_at, rank.snapshots = exited, now, exited.snapshots
        rank.become(AFTER_EXIT.get(rank.life, "exited"))
        return self._process_gone(rank)

    def _process_gone(self, rank: AgentRank) -> list[e.Effect]:
        self._news()
        launch = rank.launch
        self._forks.arrived(rank.start)
        self.addresses.settled(rank)
        expected = self.lifetime.stopping or rank.life == "ended" or rank.before[-1:] == ("done",)
        effects: list[e.Effect] = [] if expected else [e.RankDied(launch.role, launch.rank)]
        following = rank.next
        if (
            following is not None
            and not self.lifetime.stopping
            and following.generation > self._halted.get(launch.ref, -1)
        ):
            return effects + self._begin(following)
        return effects

    def _sampled(self, sample: e.Sampled, now: float) -> list[e.Effect]:
        for at in sample.ranks:
            if (rank := self._current(at.start)) is not None:
                rank.sample = at
        if sample.told != self._last.told:
            self._news()
        self._last = sample
        for rank in () if self.lifetime.stopping else self.ranks.values():
            if (failure := rank.ended_badly(now)) is not None:
                rank.fail(self._placed(failure))
                self._news()
        lifetime = self.lifetime
        if lifetime.over(now):
            lifetime.stopping = True
            return self._kill_all()
        effects: list[e.Effect] = [e.ReviveMaster()] if lifetime.revive(now) else []
        left = [r for r in self.ranks.values() if r.alive and not (lifetime.patient and r.life == "ending")]
        if lifetime.kills(now):
            return effects + [effect for rank in left for effect in self._kill(rank)]
        effects += lifetime.terminates([rank.start for rank in left], now)
        return effects + ([e.Quit()] if lifetime.quits(now) else [])
