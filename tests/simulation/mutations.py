"""Faults put into the real machines, each of which some invariant must catch: that shows that the simulation bites."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from tests.simulation import checks, lines
from tests.simulation import rank as sim_rank
from tests.simulation.agent import SimAgent
from tests.simulation.backend import Backend
from tests.simulation.effects import SimLog
from tests.simulation.master import SimMaster
from tests.simulation.memory import NodeMemory
from tests.simulation.patches import all_of, method
from tests.simulation.run import run_seed

from rolemesh.api.failures import Failure
from rolemesh_durable.extensions.bans.master import NodesBanned
from rolemesh_durable.extensions.calls.ends import CalleeEnd, CallerEnd
from rolemesh_durable.extensions.calls.history import CallHistory
from rolemesh_durable.extensions.calls.states import CalleeState, CallerState
from rolemesh_durable.extensions.checks.master import Checked, Checks
from rolemesh_durable.extensions.hangs import master as hangs
from rolemesh_durable.extensions.hangs.picture import Picture
from rolemesh_durable.extensions.rehearsal.master import Rehearsal
from rolemesh_durable.extensions.relayout.draining import Draining
from rolemesh_durable.extensions.relayout.records import Relayout
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.extensions.replicas.master import Ring
from rolemesh_durable.extensions.replicas.ring import NextAgent
from rolemesh_durable.extensions.scaling import master as scaling
from rolemesh_durable.extensions.sharing.mates import Mates
from rolemesh_durable.extensions.sharing.rank import RankSharing
from rolemesh_durable.extensions.sharing.shared_rows import SharedRows
from rolemesh_durable.extensions.sharing.states import SharingState
from rolemesh_durable.extensions.turns.admission import TurnAdmission
from rolemesh_durable.protocol import edge as edges
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent import lifetime
from rolemesh_durable.protocol.agent import machine as agent_machine
from rolemesh_durable.protocol.agent import rank as agent_rank
from rolemesh_durable.protocol.agent.address_book import AddressBook
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.rank import AgentRank, last_states
from rolemesh_durable.protocol.delivery import Delivery
from rolemesh_durable.protocol.delivery import first as first_delivery
from rolemesh_durable.protocol.delivery.first import FirstChoice
from rolemesh_durable.protocol.delivery.newest import NewestChoice
from rolemesh_durable.protocol.edge import InEdgeState
from rolemesh_durable.protocol.master import (
    carrying_out,
    clocks,
    commands,
    coordinator,
    ladder,
    own_time,
    progress,
    reports,
    transitions,
)
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.adoption import Adoption
from rolemesh_durable.protocol.master.carrying_out import CarryingOut
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.hooks import Hooks
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.resume import resume_points
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.stop_points import StopPoints
from rolemesh_durable.protocol.master.transitions import Move
from rolemesh_durable.protocol.master.wiring import Wiring
from rolemesh_durable.protocol.metrics import merge
from rolemesh_durable.protocol.metrics.item_reports import reports_record, settled
from rolemesh_durable.protocol.metrics.line_cuts import Cuts, with_cut
from rolemesh_durable.protocol.metrics.merge import LineAssembler, MetricsMerger
from rolemesh_durable.protocol.rank import ports, restoring, version_port
from rolemesh_durable.protocol.rank.agreement import Agreement
from rolemesh_durable.protocol.rank.barrier import TAKE, WANT, Barrier
from rolemesh_durable.protocol.rank.begun_lines import begun_line
from rolemesh_durable.protocol.rank.layout_changes import LayoutChanges
from rolemesh_durable.protocol.rank.machine import Call, RankMachine
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.origin_values import StoredValues
from rolemesh_durable.protocol.rank.out_edge import OutEdge
from rolemesh_durable.protocol.rank.owing import Appointments
from rolemesh_durable.protocol.rank.snapshots import GroupSnapshots, SnapshotTaker
from rolemesh_durable.protocol.rank.version_port import GroupPort, VersionPort
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import port_of
from rolemesh_failover_more_memory import MoreMemoryLevel
from rolemesh_failover_shrink import ShrinkLevel
from rolemesh_runtime import items

__all__ = ["MUTATIONS", "Mutation"]

apply = importlib.import_module("rolemesh_durable.protocol.master.apply")
relayout = importlib.import_module("rolemesh_durable.protocol.master.relayout")
"""The modules, each of which has a function of its name."""


class Mutation(NamedTuple):
    """A fault: what it is, the invariant that catches it, in which family it shows, and how it is put in."""

    name: str
    invariant: str
    family: str
    apply: Callable[[], Any]

    def search(self, first: int, schedules: int) -> tuple[int | None, Counter[str]]:
        """Play up to `schedules` schedules from `first` on, until one breaks the invariant.

        Returns its number, or None, and the violations in those before it.
        """
        seen: Counter[str] = Counter()
        with self.apply():
            for seed in range(first, first + schedules):
                broken = run_seed(seed, family=self.family).broken
                if broken.startswith(self.invariant):
                    return seed, seen
                seen[broken.partition(":")[0]] += 1
        return None, seen


def _no_epoch_fence(original: Any) -> Any:
    def handle(self: Any, message: Any, now: float) -> Any:
        self._epoch = -1
        return original(self, message, now)

    return handle


def _ready_again(original: Any) -> Any:
    def from_rank(self: Any, message: m.RankToAgent) -> Any:
        effects = original(self, message)
        rank = self._current(message.start) if isinstance(message, m.RankReady) else None
        if rank is not None and rank.life != "ready":
            rank.become("ready")
        return effects

    return from_rank


def _hears_no_first_report(original: Any) -> Any:
    def hear(self: Any, rank: Any, before: Any, seen: Any) -> None:
        if before is not None:
            original(self, rank, before, seen)

    return hear


def _passes_on_late_messages(original: Any) -> Any:
    def hear(self: Any, epoch: int, version: int, messages: Any) -> Any:
        self.heard_at = -1, -1
        return original(self, epoch, version, messages)

    return hear


def _orders_once(original: Any) -> Any:
    def turn(self: Any) -> None:
        if not self._holders:
            original(self)

    return turn


def _too_old(original: Any) -> Any:
    def choose(self: Any, step: int, there: Any) -> Any:
        self._lag += 1
        try:
            return original(self, step, there)
        finally:
            self._lag -= 1

    return choose


def _anew(original: Any) -> Any:
    def choose(self: Any, step: int, there: Any) -> Any:
        self._again = {}
        return original(self, step, there)

    return choose


def _keeps_nothing(original: Any) -> Any:
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options | {"keeps": False})

    return init


def _only_sessions_are_lost(original: Any) -> Any:
    return lambda self, call, life: call.life >= 0 and original(self, call, life)


def _forgets_what_left(original: Any) -> Any:
    def open_(self: Any, key: bytes, spec: Any, session: Any, role: str, item: Any) -> Any:
        if not spec.repeatable:
            self._left.pop(key, None)
        return original(self, key, spec, session, role, item)

    return open_


def _asks_another_rank(original: Any) -> Any:
    def open_(self: Any, key: bytes, spec: Any, session: Any, role: str, item: Any) -> Any:
        if spec.repeatable and key in self._left:
            rank, life = self._left[key]
            self._left[key] = rank ^ 1, life
        return original(self, key, spec, session, role, item)

    return open_


def _steals(original: Any) -> Any:
    return lambda self, rank, size, resume=-1, *, steals=True: original(self, rank, size, resume)


def _forgets_the_uncertain(original: Any) -> Any:
    def take_back(self: Any, rank: Any, life: int) -> Any:
        for call in [call for call in self.open.values() if call.ref == rank and call.uncertain]:
            call.sent_to = 1 << 30
        return original(self, rank, life)

    return take_back


def _changes_a_token(original: Any) -> Any:
    def outcome(self: Any, key: bytes) -> bytes | None:
        found = original(self, key)
        return None if found is None else found[:-8] + bytes([found[-8] ^ 1]) + found[-7:]

    return outcome


def _loses_turns(original: Any) -> Any:
    def take_back(self: Any, rank: Any, life: int) -> Any:
        for call in [call for call in self.open.values() if call.ref == rank and call.life < 0 and not call.once]:
            call.sent_to = 1 << 30
        return original(self, rank, life)

    return take_back


def _knows_no_call(original: Any) -> Any:
    def asked(self: Any, caller: Any, generation: int, key: Any, *rest: Any) -> Any:
        if (known := self._known.get((caller, key))) is not None and known.answer is None:
            del self._known[caller, key]
        return original(self, caller, generation, key, *rest)

    return asked


def _cut_too_early(cuts: Cuts, new: tuple[int, int], restored: int) -> Cuts:
    return with_cut(cuts, (max(cuts[-1][0] + 1, new[0] - 4), new[1]), restored)


def _cuts_every_step(original: Any) -> Any:
    def cut(self: Any, cuts: Cuts) -> None:
        again = self._ctx.generation > 0
        original(self, ((cuts[0][0], 1),) if again else cuts)

    return cut


def _first_come(original: Any) -> Any:
    def begins(self: Any) -> Any:
        heads = [queue[0] for queue in self._queues.values() if queue]
        return original(self) if all(head.step <= self._reach for head in heads) else None

    return begins


def _to_one_level(original: Any) -> Any:
    def escalated(*asked: Any) -> Any:
        floors = original(*asked)
        return [min(floors) + 1] * len(floors) if floors else []

    return escalated


def _any_answer(original: Any) -> Any:
    def answered(self: Any, recovery: Any, event: Any) -> Any:
        if isinstance(event, me.PlacesFound):
            event = msgspec.structs.replace(event, wanted=self._places(recovery))
        return original(self, recovery, event)

    return answered


def _takes_its_time(original: Any) -> Any:
    return lambda self, wanted: self.world.at(self.world.between(0.0, 3.0), original, self, wanted)


def _grants_are_forgotten(original: Any) -> Any:
    def begin(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._granted = -1

    return begin


def _commit_what_is_finished(original: Any) -> Any:
    def commit(self: Any) -> Any:
        ranks = self._context.state.ranks
        before = {key: record.durable for key, record in ranks.items()}
        for record in ranks.values():
            record.durable = max(record.durable, record.finished, record.report.step if record.report else -1)
        original(self)
        for key, durable in before.items():
            ranks[key].durable = durable

    return commit


def _duplicates_are_taken(original: Any) -> Any:
    def restart(self: Any, source: int, generation: int) -> int:
        head = self._heads[self._position(source)]
        if generation > head.generation >= 0 and head.step > 0 and not head.chunk:
            head.generation = generation
            head.step -= 1  # the last value is taken once more
            if head.step in self._chunks:
                self._ended[head.step] -= 1
        return int(original(self, source, generation))

    return restart


def _no_hold(original: Any) -> Any:
    return lambda *arguments: max(0, original(*arguments) - 1)


def _asks_too_late(original: Any) -> Any:
    def restart(self: Any, source: int, generation: int) -> int:
        return int(original(self, source, generation)) + (generation > 0)

    return restart


def _launches_again(original: Any) -> Any:
    def launch(self: Any, order: m.RankLaunch) -> Any:
        self._halted.clear()
        known = self.ranks.get(order.ref)
        if known is not None and known.alive and order.generation > known.launch.generation:
            return self._begin(order)  # without waiting for the end of the old process
        return original(self, order)

    return launch


def _does_not_wait_for_the_dead(original: Any) -> Any:
    return lambda self, key, seen: True


def _old_snapshots_do(original: Any) -> Any:
    def points(groups: Any, held: Any, copies: Any, agents: Any, committed: int, origin: Any) -> Any:
        found = original(groups, held, copies, agents, committed, origin)
        if isinstance(found, str):
            return found
        for group in groups:
            common = set.intersection(*({s for steps in held.get(k, {}).values() for s in steps} for k in group))
            if common:
                for key in group:
                    found[key] = type(found[key])(min(common), found[key].restore, found[key].replica)
        return found

    return points


def _fails_of_fit_nodes(original: Any) -> Any:
    def turn(self: Checks) -> None:
        checked = self._context.state.slice(Checked).nodes
        before = len(checked)
        original(self)
        if not before and checked and not self._context.state.barred:
            self._context.failed(Failure("check", node=next(iter(checked)), message="fit"))

    return turn


def _bans_for_one_plan(original: Any) -> Any:
    def apply(self: NodesBanned, state: JobState) -> None:
        original(self, state)
        state.barred -= {(node, "banned") for node in self.nodes}

    return apply


def _forgets_who_is_unfit(original: Any) -> Any:
    def turn(self: Checks) -> None:
        original(self)
        self._context.state.barred.clear()

    return turn


def _no_budget(original: Any) -> Any:
    def propose(found: Any, view: Any, *others: Any) -> Any:
        return original(found, msgspec.structs.replace(view, attempts=()), *others)

    return propose


def _failures_meanwhile_are_lost(original: Any) -> Any:
    def failed(self: Any, failure: Any, silent_s: float = 0.0) -> None:
        busy = self.state.recovery is not None
        original(self, failure, silent_s)
        if busy:
            self.state.open.pop()

    return failed


def _says_everything_once(original: Any) -> Any:
    def send(self: Any, agent: Any, message: Any, again_s: float = 0.5) -> Any:
        return original(self, agent, message, again_s if isinstance(message, m.Watermarks) else 1e9)

    return send


def _forgets_generations(original: Any) -> Any:
    def kept(state: Any) -> Any:
        told = original.fget(state)
        ranks = {
            key: msgspec.structs.replace(rank, launch=msgspec.structs.replace(rank.launch, generation=0))
            for key, rank in told.ranks.items()
        }
        return msgspec.structs.replace(told, ranks=ranks)

    return property(kept)


def _forgets_slices(original: Any) -> Any:
    return property(lambda state: msgspec.structs.replace(original.fget(state), slices={}))


def _leaves_unlogged(original: Any) -> Any:
    def leave(self: Any) -> None:
        for role in self._sizes:
            for call in self._state.leaving(role):
                self._send(call)

    return leave


def _repeats_no_answer(original: Any) -> Any:
    def take(self: Any, *request: Any) -> None:
        self._state.asked(*request)

    return take


def _launch_is_not_journalled(original: Any) -> Any:
    def tell(self: Any, happened: Any) -> None:
        if not isinstance(happened, transitions.RecoveryLaunched):
            original(self, happened)
        else:
            apply.apply(self.state, happened)

    return tell


def _restored_is_safe(original: Any) -> Any:
    def launch(self: Any, recovery: Any, points: Any) -> Any:
        original(self, recovery, points)
        for key in points:
            self._context.state.ranks[key].durable = self._context.state.ranks[key].launch.resume

    return launch


def _same_generation(original: Any) -> Any:
    def launched(state: Any, started: Any) -> None:
        original(state, msgspec.structs.replace(started, generation=started.generation - 1))

    return launched


def _overwrites_at_once(original: Any) -> Any:
    return lambda self, step: True


def _each_its_newest(original: Any) -> Any:
    def due(self: Any) -> Any:
        ranks = [rank for rank in self.ranks.values() if rank.alive and rank.snapshot >= 0]
        return [(rank, rank.snapshot) for rank in ranks if rank.key not in self.copying]

    return due


def _hears_on(original: Any) -> Any:
    def failed(self: Any, text: str, cause: str = "exception") -> None:
        original(self, text, cause)
        if cause == "log_lost":
            self._until = lambda: False

    return failed


def _takes_it_alone(original: Any) -> Any:
    def heard(self: Any, rank: int, kind: int, position: int) -> Any:
        answers = original(self, rank, kind, position)
        return ((rank, TAKE),) if kind == WANT else answers

    return heard


def _decides_alone(original: Any) -> Any:
    return lambda self, step: not self._begun or hash((id(self), step)) % 3 == 0


def _goes_in_untold(original: Any) -> Any:
    def heard(self: Any, rank: int, kind: int, position: int) -> Any:
        answers = original(self, rank, kind, position)
        late, self._late = self.__dict__.get("_late", ()), answers if kind == WANT else ()
        return (*answers, *late) if kind != WANT else ()

    return heard


def _timeline_is_forgotten(original: Any) -> Any:
    def init(self: Any, who: Any, lease_s: float, neighbours: Any, left: ae.Left, at_once: int) -> None:
        original(self, who, lease_s, neighbours, msgspec.structs.replace(left, timeline=0), at_once)

    return init


def _end_is_not_told_again(original: Any) -> Any:
    def turn(self: Any, events: Any, now: float) -> Any:
        return [] if self.state.phase == "ended" else original(self, events, now)

    return turn


def _without(*names: str) -> Any:
    """Checks that would see the fault sooner are left out, so that the one behind them is tried."""
    return all_of(*(patch.object(checks.Checks, name, lambda self, *arguments: None) for name in names))


def _checkpoint_without_parts(original: Any) -> Any:
    def add(self: Any, teller: Any, part: Any) -> None:
        known, published = self._parts.setdefault(part.step, {}), self._progress.published
        for key in self._context.state.ranks:
            known.setdefault(key, (teller, msgspec.structs.replace(part, role=key[0], rank=key[1])))
        self._progress.published = max(published, part.step)
        original(self, teller, part)
        self._progress.published = published

    return add


def _parts_of_any_generation(original: Any) -> Any:
    def add(self: Any, teller: Any, part: Any) -> None:
        rank, effects = self._context.state.ranks[part.ref], self._context._effects
        known, before = self._parts.setdefault(part.step, {}), len(effects)
        original(self, teller, msgspec.structs.replace(part, generation=rank.launch.generation))
        if part.ref in known:
            known[part.ref] = teller, part
        for at in range(before, len(effects)):
            if isinstance(effect := effects[at], me.CommitCheckpoint):
                parts = tuple(known[p.ref][1] for p in effect.parts)
                effects[at] = msgspec.structs.replace(effect, parts=parts)

    return add


def _ranks_end_too(original: Any) -> Any:
    """No fault: with an agent its ranks are killed, so that they are restored."""

    def end(self: Any, why: str, node_lost: bool = False) -> None:
        alive = self.alive
        original(self, why, node_lost)
        if alive:
            self.sweep()

    return end


def _goes_back_too_far(original: Any) -> Any:
    def answered(self: Any, event: Any) -> Any:
        if isinstance(event, me.OriginFound) and event.step >= 0:
            event = me.OriginFound("", -1)
        return original(self, event)

    return answered


def _restores_what_is_not_there(original: Any) -> Any:
    def points(*arguments: Any) -> Any:
        found = original(*arguments)
        if isinstance(found, str):
            return found
        return {key: msgspec.structs.replace(resume, step=resume.step + 1) for key, resume in found.items()}

    return points


def _ends_without_a_word(original: Any) -> Any:
    def propose(*arguments: Any) -> Any:
        return msgspec.structs.replace(original(*arguments), trail=())

    return propose


def _passes_no_message_on(original: Any) -> Any:
    def hear(self: Any, message: Any, now: float) -> Any:
        return [effect for effect in original(self, message, now) if not isinstance(effect, m.ToPart)]

    return hear


def _leaves_without_a_word(original: Any) -> Any:
    def handle(self: Any, event: Any, now: float) -> Any:
        if isinstance(event, ae.Leave):
            self.lifetime.stopping = True
            return [*self._kill_all(), *self._clean_up_if_empty(now)]
        return original(self, event, now)

    return handle


def _ends_with_its_ranks(original: Any) -> Any:
    def do(self: Any, effect: Any) -> None:
        if isinstance(effect, ae.Quit):
            self.sweep()
        original(self, effect)

    return do


def _one_step_early(original: Any) -> Any:
    def tell(self: Any, happened: Any) -> None:
        if isinstance(happened, transitions.StopPoint) and happened.then == "move":
            happened = msgspec.structs.replace(happened, step=happened.step - 1)
        original(self, happened)

    return tell


def _lets_a_resize_go_first(original: Any) -> Any:
    def turn(self: Any) -> None:
        if self._context.state.slice(Relayout).resize is None:
            original(self)

    return turn


def _drained_or_not(original: Any) -> Any:
    def away(self: JobState, nodes: Any = ()) -> Any:
        drained = {node for node, why in self.barred if why == "drained"}
        return tuple(sorted({*original(self, nodes)} - drained))

    return away


def _blames_who_waits(original: Any) -> Any:
    def for_input(self: Any, key: Any, report: Any, edge: Any) -> Any:
        wait = original(self, key, report, edge)
        sent = all(self.past(self.live[whom], edge.src, report.step - edge.lag) for whom in wait.whom)
        return type(wait)((), wait.why) if sent else wait

    return for_input


def _forgets_what_was_proved(original: Any) -> Any:
    def moved(self: Any, seen: Any) -> Any:
        self._slow = None
        return original(self, seen)

    return moved


def _from_the_next_step(original: Any) -> Any:
    def first_needed(self: Delivery, graph: Any, activity: Any, unrepeated: Any, resume: int) -> int:
        return min(int(original(self, graph, activity, unrepeated, resume)), max(0, resume + 1 - self.edge.lag))

    return first_needed


def _lag_is_exact(original: Any) -> Any:
    def first_needed(self: Delivery, graph: Any, activity: Any, unrepeated: Any, resume: int) -> int:
        edge = self.edge
        repeated = edges.last_call(activity, edge.dst, resume)
        if repeated is not None and repeated - edge.lag < activity.first(edge):
            unrepeated = (*unrepeated, graph.ops[edge.dst].role)
        return int(original(self, graph, activity, unrepeated, resume))

    return first_needed


def _tells_the_latest_only(original: Any) -> Any:
    def message(self: Wiring, agent: Any) -> Any:
        wire = original(self, agent)
        last = self._version
        return wire and msgspec.structs.replace(
            wire, since=wire.since, peers=tuple(p for p in wire.peers if self._peers[p.ref][1] == last)
        )

    return message


def _needs_what_it_needed(original: Any) -> Any:
    def renew(self: Wiring, name: str, agent: Any, here: Any, moved: Any) -> None:
        known = self._homes.get(name)
        before = known.needs if known is not None and known.incarnation == agent.incarnation else None
        original(self, name, agent, here, moved)
        if before:
            self._homes[name].needs = before

    return renew


def _wired_once(original: Any) -> Any:
    def tell(self: AddressBook, key: Any, rank: Any, new: Any) -> Any:
        return original(self, key, rank, new) if key in new else []

    return tell


def _last_step_is_forgotten(original: Any) -> Any:
    def job(state: JobState, happened: Any, wall: float) -> None:
        original(state, happened, wall)
        if isinstance(happened, transitions.MasterRecovered):
            state.stop = transitions.NO_STOP

    return job


def _decides_by_itself(original: Any) -> Any:
    def newest(self: Any) -> Any:
        state = self._context.state
        if state.finishing and not state.stop.active and not state.busy:
            return max(self._progress.granted, state.committed, 0)
        return original(self)

    return newest


def _seen_as_it_is_made() -> Any:
    def put(self: Any, out_edge: Any, item: Any, step: int, chunk: int, last: bool, consumers: Any) -> None:
        begun = self.__dict__.setdefault("_begun", {})
        begun.setdefault(step, self._log.position)
        out_edge.put(item, step, chunk, last, consumers)

    def finish(self: Any, step: int) -> None:
        if (first := self.__dict__.get("_begun", {}).pop(step, None)) is not None:
            self._say_whole(self._log, step, first)

    def slowly(self: Any, *chunk: Any) -> None:
        log(self, *chunk)
        self._rank.sleep(self._rank.world.between(0.0, 0.02))

    log = SimLog.chunk_of
    return all_of(
        patch.object(VersionPort, "_put", put),
        patch.object(VersionPort, "_finish", finish),
        patch.object(SimLog, "chunk_of", slowly),
    )


def _both_count(original: Any) -> Any:
    def assembled(made: Any) -> Any:
        made = list(made)
        return None if original(made) is None else [row for item in sorted(made) for row in item[4]]

    return assembled


def _without_the_missing(original: Any) -> Any:
    def assembled(made: Any) -> Any:
        found = {item[0]: item for item in made}
        return [row for index in sorted(found) for row in found[index][4]]

    return assembled


def _for_the_dead_too(original: Any) -> Any:
    def asked(self: Any, mate: int, generation: int, step: int) -> Any:
        before = [(at, item) for at, claims in self._claims.items() for item in claims.get(mate, ())]
        return [*original(self, mate, generation, step), *(taken for taken in before if taken[0] >= step)]

    return asked


def _own_log_only(original: Any) -> Any:
    def heard(self: Any, rank: int, position: int, vote: int) -> Any:
        return ((rank, True),)

    return heard


def _seen_before_the_vote(original: Any) -> Any:
    def finish(self: Any, step: int) -> None:
        if step in self._former:
            original(self, step)
            return
        staged, self._staged = self._staged, []
        if staged:
            self._write(step, staged)
        version_port._show(staged)
        self._agree(step, self._site.generation + 1 if staged else 0)

    return finish


def _each_rank_counts(parts: Any) -> Any:
    return [part for each in parts for part in settled([each])]


def _reports_no_former_life(original: Any) -> Any:
    def made(self: Any, step: int, count: int, reports: Any) -> Any:
        found = original(self, step, count, reports)
        return (found[0], {}) if self.is_made(step) else found

    return made


def _nobody_is_heard(original: Any) -> Any:
    def asked(self: Any, *ask: int) -> None:
        self.made = None
        original(self, *ask)

    return asked


def _first_anew(original: Any, lag: int, *, taken: Any = None, again: Any = None) -> Any:
    return original(lag, taken=taken)


def _first_forgets(original: Any, lag: int, *, taken: Any = None, again: Any = None) -> Any:
    return original(lag, taken=taken and taken._replace(beyond=()), again=again)


def _grants_on(original: Any) -> Any:
    def grant(self: Any) -> None:
        state = self._context.state
        held, state.stop = state.stop, transitions.NO_STOP
        original(self)
        state.stop = held

    return grant


def _resizes_all(original: Any) -> Any:
    def restart(self: Any, word: str, ranks: Any, *others: Any, **named: Any) -> None:
        original(self, word, tuple(self._context.state.ranks) if word == "resize" else ranks, *others, **named)

    return restart


def _to_the_least(original: Any) -> Any:
    def recover(self: Any, failure: Any, view: Any) -> Any:
        plan = original(self, failure, view)
        resize = {role: view.ranges[role][0] for role in getattr(plan, "resize", {})}
        return msgspec.structs.replace(plan, resize=resize) if resize else plan

    return recover


def _below_the_least(original: Any) -> Any:
    def recover(self: Any, failure: Any, view: Any) -> Any:
        ranges = {role: (0, most) for role, (_, most) in view.ranges.items()}
        plan = original(self, failure, msgspec.structs.replace(view, ranges=ranges))
        resize = {role: max(1, size) for role, size in getattr(plan, "resize", {}).items()}
        return msgspec.structs.replace(plan, resize=resize) if resize else plan

    return recover


def _without_limit(original: Any) -> Any:
    def recover(self: Any, failure: Any, view: Any) -> Any:
        most = {role: {"memory_gb": 9.0} for role in view.most}
        return original(self, failure, msgspec.structs.replace(view, most=most))

    return recover


def _as_it_was(original: Any) -> Any:
    return lambda self, launch: msgspec.structs.replace(original(self, launch), memory_gb=1.0)


def _without_what_was_given(original: Any) -> Any:
    def replan(self: Any, wanted: Any) -> None:
        state = self.machine.state
        held, state.resources = state.resources, {}
        original(self, wanted)
        state.resources = held

    return replan


def _one_less(original: Any) -> Any:
    def most_granted(self: Any) -> int | None:
        granted: int | None = original(self)
        return granted - 1 if granted else granted

    return most_granted


def _twice(original: Any) -> Any:
    def add(self: Any, extension: Any, base: Any) -> None:
        original(self, extension, base)
        self.turn = (*self.turn, *self.turn[-1:])

    return add


def _last_first(original: Any) -> Any:
    def add(self: Any, extension: Any, base: Any) -> None:
        held, self.turn = self.turn, ()
        original(self, extension, base)
        self.turn = (*self.turn, *held)

    return add


def _only_the_first_master(original: Any) -> Any:
    def begin(self: Any) -> None:
        hooks = self._context.hooks
        hooks.begin = hooks.begin if self.state.phase == "new" else ()
        original(self)

    return begin


def _of_the_same_size(original: Any) -> Any:
    return lambda read, rank, before, now: original(read, rank, before, now) if before == now else None


def _as_for_the_present(original: Any) -> Any:
    def ends(self: Any, edge: Any) -> Any:
        source, producers, _ = original(self, edge)
        return source, producers, self._size

    return ends


def _appends_new_ports(original: Any) -> Any:
    def relayout(self: Any, layout: Any, changed: Any) -> Any:
        edges = original(self, layout, changed)
        for named in self.inputs.values():
            named.sort(key=lambda each: each[1].edge.id in edges)
        return edges

    return relayout


def _tells_at_once(original: Any) -> Any:
    def turn(self: Any, layout: Any, ranks: Any, agents: Any, here: Any) -> None:
        seen = {key: rank.report for key, rank in ranks.items()}
        for rank in ranks.values():
            if rank.report is not None:
                rank.report = msgspec.structs.replace(rank.report, layout=layout.number)
        original(self, layout, ranks, agents, here)
        for key, rank in ranks.items():
            rank.report = seen[key]

    return turn


def _connects_once(original: Any) -> Any:
    def connect(self: Any, ports: Any) -> None:
        if not hasattr(self, "inputs"):
            original(self, ports)

    return connect


def _says_nothing_again(original: Any) -> Any:
    def begin(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._control.on_adopted.pop()

    return begin


def _opens_late(original: Any) -> Any:
    def begin(self: Any, *arguments: Any) -> None:
        with patch.object(self._ports, "open", lambda peers: None):
            original(self, *arguments)
        self._ports.open(tuple(self._control.peers.values()))

    return begin


def _hears_of_no_items(original: Any) -> Any:
    def chosen(self: Any, step: int, count: int, finished: Any) -> Any:
        while not self._mates.is_made(step) and (item := self._mates.take(step, count)) is not None:
            yield item

    return chosen


def _reports_this_life(original: Any) -> Any:
    def counted(self: Any, made: Any, op: Any, count: int) -> Any:
        yield from made
        step, reports = self._ctx.step, port_of(self._ctx).take_items(self._ctx.step)
        self._mates.made(step, count, reports)
        self._record(reports_record(op.label, step, self._ctx.rank, count, reports))

    return counted


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("a rank takes an item without a look at what mates have taken", "ranks make no row twice without need",
             "shared", method(SharedRows, "_chosen", _hears_of_no_items)),
    Mutation("a rank reports the items of this life in place of those in its log", "an item's metrics count once",
             "versions shared", method(SharedRows, "_counted", _reports_this_life)),
    Mutation("a rank begins a call without its group", "no deadlock", "room group",
             method(TurnAdmission, "_pass", lambda original: lambda self, barrier: True)),
    Mutation("an item that two ranks have made counts twice", "no row comes twice", "shared",
             lambda: patch.object(items, "assembled", _both_count(items.assembled))),
    Mutation("a restarted rank skips items that it had taken but not made",
             "no row is lost", "shared", lambda: all_of(
                 method(SharingState, "asked", _for_the_dead_too)(),
                 patch.object(items, "assembled", _without_the_missing(items.assembled)))),
    Mutation("a restarted rank does not announce the items that it takes",
             "ranks make no row twice without need", "shared",
             method(SharingState, "told",
                    lambda original: lambda self, mate, generation: self._silent.discard(mate) or [])),
    Mutation("a step takes rows that have come before rows that are due", "a bounded lag is kept", "shared first",
             method(FirstChoice, "_choice", lambda original: lambda self, due: list(self._ready)[: self._each])),
    Mutation("a restarted rank makes another choice of rows", "a repeated step takes the same values", "shared first",
             lambda: patch.object(first_delivery, "FirstChoice", partial(_first_anew, FirstChoice))),
    Mutation("a restarted rank forgets the rows that it had taken", "no row comes twice", "shared first",
             lambda: patch.object(first_delivery, "FirstChoice", partial(_first_forgets, FirstChoice))),
    Mutation("a restarted rank ignores the decisions in its log", "a repeated step takes the same values", "process",
             method(ports.Ports, "recall", lambda original: lambda self, resume, told: original(self, resume, ()))),
    Mutation("a restarted rank counts taken items as made", "no deadlock", "shared",
             method(SharingState, "asked", _for_the_dead_too)),
    Mutation("values in flight are joined by the routes of the new layout",
             "the state is the undisturbed run's", "shared resize",
             method(StoredValues, "_ends", _as_for_the_present)),
    Mutation("a callee does not stop at the step of a layout change",
             "a resize loses no call", "calls resize",
             method(Progress, "most_granted", _one_less)),
    Mutation("a callee waits for callers of an earlier layout", "no deadlock", "calls resize",
             method(CalleeState, "resized", lambda original: lambda self, role, size: None)),
    Mutation("the master grants steps beyond a layout change", "a step has one layout", "resize calm",
             method(Progress, "_grant", _grants_on)),
    Mutation("a rank that waits for a new layout persists no snapshot", "no deadlock",
             "resize calm", method(SnapshotTaker, "end", lambda original: lambda self, step: None)),
    Mutation("a rank that waits for a grant does not take up a new layout", "a resize restarts its roles only",
             "resize calm", method(LayoutChanges, "is_due", lambda original: lambda self, finished: False)),
    Mutation("a rank of a new layout gets no values in flight", "a producer answers every request", "resize calm",
             lambda: patch.object(restoring, "restore_inputs", lambda *arguments: None)),
    Mutation("a rank that takes up a new layout takes its arguments in another order",
             "the state is the undisturbed run's", "resize calm",
             method(ports.Ports, "relayout", _appends_new_ports)),
    Mutation("a resize restarts all roles", "a resize restarts its roles only", "resize calm",
             method(Coordinator, "restart", _resizes_all)),
    Mutation("snapshots of an earlier layout count for the new one",
             "the state is the undisturbed run's", "resize",
             method(CarryingOut, "_own", lambda original: lambda self, role, steps: steps)),
    Mutation("the master announces ranks of a layout that they have not taken up", "no deadlock", "resize",
             method(Wiring, "turn", _tells_at_once)),
    Mutation("a role gives up all ranks above its minimum", "a role keeps ranks that have a place", "shrink",
             method(ShrinkLevel, "recover", _to_the_least)),
    Mutation("a role gives up ranks below its minimum",
             "a role keeps its minimum of ranks", "shrink", lambda: all_of(
                 method(ShrinkLevel, "recover", _below_the_least)(),
                 patch.object(coordinator, "refusal", lambda *asked, **job: ""))),
    Mutation("failures of one failed plan share the lowest level", "the job ends as its faults allow",
             "shrink", lambda: patch.object(coordinator, "escalated", _to_one_level(ladder.escalated))),
    Mutation("a plan fails before the loss that causes it is journalled", "the job ends as its faults allow", "shrink",
             method(CarryingOut, "_unheard", lambda original: lambda self, recovery, gone: False)),
    Mutation("a resize goes on from a layout that a recovery has changed", "no deadlock", "shrink",
             method(Resizing, "_overtaken", lambda original: lambda self, resize: False)),
    Mutation("a recovery gives a role more memory than its limit", "a role's memory stays within its limit", "memory",
             lambda: all_of(patch.object(MoreMemoryLevel, "recover", _without_limit(MoreMemoryLevel.recover)),
                            patch.object(ladder, "_exceeds", lambda wanted, view: ""))),
    Mutation("a moved rank gets its first request of memory", "a role keeps its granted memory",
             "memory", method(Move, "applied", _as_it_was)),
    Mutation("placement counts the first requests of memory", "a node's ranks fit its resources",
             "memory", method(SimMaster, "_replan", _without_what_was_given)),
    Mutation("a moved line keeps parts of its former neighbours", "a line of metrics is written once", "memory",
             method(LineAssembler, "moved", lambda original: lambda self, homes: None)),
    Mutation("a rank repeats an operator whose value is in its log", "all consumers of a value agree", "versions",
             method(NodeMemory, "is_whole", lambda original: lambda self, key, edge, step: False)),
    Mutation("a rank sends a value before its log is complete", "all consumers of a value agree", "versions",
             _seen_as_it_is_made),
    Mutation("a rank does not notice a lost log", "all consumers of a value agree", "versions",
             method(OutEdge, "asked", _nobody_is_heard)),
    Mutation("a rank with a lost log takes later messages", "an ended rank does nothing more",
             "versions", method(sim_rank.SimRank, "_failed", _hears_on)),
    Mutation("a rank of a group reads its own log only", "all consumers of a value agree", "versions group",
             method(Agreement, "heard", _own_log_only)),
    Mutation("a rank sends its part before its group has theirs", "all consumers of a value agree",
             "versions group", method(GroupPort, "_finish", _seen_before_the_vote)),
    Mutation("a rank repeats an item whose result is in its log", "all consumers of a value agree",
             "versions shared", lambda: all_of(
                 method(Mates, "remember", lambda original: lambda self, step, items: None)(),
                 method(NodeMemory, "is_whole", lambda original: lambda self, key, edge, step: False)())),
    Mutation("a rank sends items before its log has them", "all consumers of a value agree", "versions shared",
             _seen_as_it_is_made),
    Mutation("a step takes a value that is older than its edge allows", "a bounded lag is kept", "calm",
             method(NewestChoice, "choose", _too_old)),
    Mutation("a restarted rank takes the newest value of now", "a repeated step takes the same values", "process",
             method(NewestChoice, "choose", _anew)),
    Mutation("a value is kept until a newer one is taken, even if it is too old for the next call", "no deadlock",
             "calm", lambda: patch.object(NewestChoice, "released", property(lambda self: self.made - 1))),
    Mutation("a new master chooses another last step", "all ranks end with the same step", "finish",
             lambda: patch.object(apply, "_job", _last_step_is_forgotten(apply._job))),
    Mutation("a master chooses the last step without the grants of earlier masters",
             "all ranks end with the same step", "finish", method(StopPoints, "newest", _decides_by_itself)),
    Mutation("a plan uses places of an earlier plan",
             "ranks move to nodes of their plan", "nodes",
             lambda: all_of(method(CarryingOut, "answered", _any_answer)(),
                          method(SimMaster, "_replan", _takes_its_time)())),
    Mutation("an agent forgets the grants of its predecessor", "all ranks end with the same step", "finish",
             method(AgentMachine, "__init__", _grants_are_forgotten)),
    Mutation("a rank that has taken its last step becomes ready again", "no exception", "adopt",
             method(AgentMachine, "_from_rank", _ready_again)),
    Mutation("the end of a halted rank counts as one that nobody has asked for", "no exception", "process",
             lambda: patch.dict(agent_rank.AFTER_EXIT, halting="exited")),
    Mutation("a rank that fails while it is halted counts as failing", "no exception", "storm",
             lambda: patch.object(AgentRank, "fail", lambda self, failure: self.become("failing"))),
    Mutation("an agent obeys masters of older epochs", "only the newest master acts", "master",
             method(AgentMachine, "handle", _no_epoch_fence)),
    Mutation("a finished step counts as safe", "every rank can restore the committed step", "storm",
             method(Progress, "_commit", _commit_what_is_finished)),
    Mutation("a restored rank counts as safe at once, without a replica", "every rank can restore the committed step",
             "process", method(CarryingOut, "_launch", _restored_is_safe)),
    Mutation("a consumer takes the last value of a restarted producer again", "the state is the undisturbed run's",
             "process", method(InEdgeState, "restart_source", _duplicates_are_taken)),
    Mutation("a consumer takes shards a second time", "a shard is trained once", "process",
             lambda: all_of(method(InEdgeState, "restart_source", _duplicates_are_taken)(),
                          _without("_as_undisturbed", "final_state"))),
    Mutation("a consumer asks one step too late", "no deadlock", "process",
             method(InEdgeState, "restart_source", _asks_too_late)),
    Mutation("a producer holds values for one step less", "a producer answers every request", "storm",
             lambda: patch.object(ports, "hold_of", _no_hold(edges.hold_of))),
    Mutation("a stateless rank does not repeat its last sink call", "no deadlock", "process",
             method(RankMachine, "_repeat", lambda original: lambda self, resume: None)),
    Mutation("an agent starts a rank beside its old process", "a rank has one process", "process",
             lambda: all_of(method(AgentMachine, "_launch", _launches_again)(),
                          method(CarryingOut, "_gone", _does_not_wait_for_the_dead)())),
    Mutation("a rank restores its oldest snapshot", "no rank restores a step before the commit",
             "storm", lambda: patch.object(
                 carrying_out, "resume_points", _old_snapshots_do(resume_points))),
    Mutation("a rank restores a snapshot that does not exist", "ranks restore a snapshot that exists", "process",
             lambda: patch.object(
                 carrying_out, "resume_points", _restores_what_is_not_there(resume_points))),
    Mutation("the job ignores the checkpoints on disk", "the job rolls back to a whole checkpoint", "all",
             method(Coordinator, "answered", _goes_back_too_far)),
    Mutation("a recovering master forgets the commits", "steps are committed once", "master",
             lambda: all_of(patch.object(JobState, "commit", lambda self, step: None), _without("told"))),
    Mutation("a checkpoint lacks the generations of ranks", "compaction forgets nothing", "storm",
             method(JobState, "kept", _forgets_generations)),
    Mutation("a checkpoint lacks the slices of extensions", "no deadlock", "resize",
             method(JobState, "kept", _forgets_slices)),
    Mutation("a new master ignores records of extensions", "the journal agrees with the processes", "drain calm",
             lambda: patch.dict(transitions.OTHERS, clear=True)),
    Mutation("the index of ranks by agent misses moves", "the index of ranks by agent equals a scan", "drain calm",
             method(JobState, "index", lambda original: lambda self: None if self.here else original(self))),
    Mutation("a launch is not journalled", "the journal agrees with the processes", "storm",
             method(MasterContext, "tell", _launch_is_not_journalled)),
    Mutation("a recovering master forgets the launches", "no deadlock", "storm",
             lambda: all_of(method(MasterContext, "tell", _launch_is_not_journalled)(), _without("told"))),
    Mutation("a restarted rank keeps its generation", "generations grow", "nodes",
             lambda: patch.object(apply, "_launched", _same_generation(apply._launched))),
    Mutation("an agent adopts no rank", "an agent's death restarts no rank", "adopt",
             method(AgentMachine, "_adopt", lambda original: lambda self, found: [])),
    Mutation("a replaced agent continues", "a rank has one agent", "adopt",
             lambda: all_of(method(SimAgent, "replaced", lambda original: lambda self: None)(),
                          method(Backend, "kill", lambda original: lambda self, name, incarnation: None)())),
    Mutation("an agent does not miss ranks that ended without it", "the job ends as its faults allow", "all",
             lambda: all_of(method(Adoption, "reported", lambda original: lambda self, agent, report: None)(),
                          method(AgentMachine, "_adopt", lambda original: lambda self, found:
                                 [] if found.exited is not None else original(self, found))())),
    Mutation("a rank starts on a node that was not checked", "ranks start on fit nodes", "checks",
             method(Checks, "holds", lambda original: lambda self, agent: False)),
    Mutation("a fit node counts as a failure", "ranks leave unfit nodes only", "checks calm",
             method(Checks, "turn", _fails_of_fit_nodes)),
    Mutation("an unfit node is used where there is no other", "the journal agrees with the processes",
             "checks", method(Checks, "turn", _forgets_who_is_unfit)),
    Mutation("an agent passes no message on to the parts of extensions", "the job ends as its faults allow", "checks",
             method(AgentMachine, "_from_master", _passes_no_message_on)),
    Mutation("an agent's reports lack the reports of its parts", "the job ends as its faults allow", "checks",
             method(m.Report, "part", lambda original: lambda self, kind: None)),
    Mutation("levels have no budget", "the ladder ends", "endless",
             lambda: patch.object(coordinator, "propose", _no_budget(ladder.propose))),
    Mutation("an exhausted ladder is not reported", "a failed job names the levels it tried", "endless",
             lambda: patch.object(coordinator, "propose", _ends_without_a_word(ladder.propose))),
    Mutation("a failure during a recovery is lost", "the job ends as its faults allow", "process",
             lambda: all_of(method(MasterContext, "failed", _failures_meanwhile_are_lost)(), _without("told"))),
    Mutation("the master sends commands once", "the job ends as its faults allow", "process",
             method(commands.Commands, "_send", _says_everything_once)),
    Mutation("an agent gets the latest address only", "the job ends as its faults allow", "process",
             method(Wiring, "message", _tells_the_latest_only)),
    Mutation("a rank that joins an agent brings no neighbours", "the job ends as its faults allow", "nodes",
             method(Wiring, "_renew", _needs_what_it_needed)),
    Mutation("a restored rank asks for values that are too old for its next call", "no deadlock", "drain",
             method(Delivery, "first_needed", _from_the_next_step)),
    Mutation("a restarted rank does not ask for its last inputs", "recovery restarts the fewest ranks",
             "seldom", method(Delivery, "first_needed", _lag_is_exact)),
    Mutation("a rank learns new addresses only at its start", "no deadlock", "process",
             method(AddressBook, "_tell", _wired_once)),
    Mutation("a master declares a silent agent dead at once",
             "no rank restarts without a failure", "calm", lambda: patch.object(reports, "SILENCE_S", 0.3)),
    Mutation("a master counts time in which its store blocked", "the job ends as its faults allow", "stall",
             lambda: patch.object(own_time, "STALL_S", 1e9)),
    Mutation("a new master reads another machine's clock as its own", "no deadlock", "master",
             lambda: all_of(patch.object(clocks, "_told", lambda at, **others: at),
                          patch.object(ladder, "FIRST_DELAY_S", 4.0))),
    Mutation("recoveries follow each other without a pause", "the job ends as its faults allow", "passing",
             lambda: patch.object(ladder, "MAX_DELAY_S", 0.0)),
    Mutation("a judged operator never gets more time", "no deadlock", "slow",
             lambda: patch.object(hangs, "PATIENCE", 1.0)),
    Mutation("the hang watch forgets an operator's longest time", "a busy operator is not restarted", "slow",
             method(hangs.HangWatch, "_rank_moved", _forgets_what_was_proved)),
    Mutation("the hang watch blames a rank that waits for a busy one",
             "a busy operator is not restarted", "slow", method(Picture, "_for_input", _blames_who_waits)),
    Mutation("an agent that ends kills its ranks", "no rank restarts without a failure", "leave",
             lambda: all_of(patch.object(lifetime, "NOTICE_S", 0.5), method(SimAgent, "_do", _ends_with_its_ranks)())),
    Mutation("ranks leave a node in the middle of a step", "a drain loses no step", "drain calm",
             method(StopPoints, "reached", lambda original: lambda self: True)),
    Mutation("leaving ranks and a resize wait for each other", "no deadlock", "resize",
             method(Draining, "turn", _lets_a_resize_go_first)),
    Mutation("ranks leave after a step that they may have passed", "a leaving rank knows its last step", "drain calm",
             method(MasterContext, "tell", _one_step_early)),
    Mutation("a node that was drained is used again", "no rank is on a drained node", "drain",
             method(JobState, "away", _drained_or_not)),
    Mutation("the master calls a hook of an extension twice", "the master calls each hook once, in order", "calm",
             method(Hooks, "add", _twice)),
    Mutation("the master calls hooks in another order", "the master calls each hook once, in order", "calm",
             method(Hooks, "add", _last_first)),
    Mutation("extensions of a new master miss its begin", "the master calls each hook once, in order", "master",
             method(MasterMachine, "_begin", _only_the_first_master)),
    Mutation("the master asks a scaler right after a resize", "a scaler waits after a resize", "scaling",
             lambda: patch.object(scaling._Watch, "pause_s", 0.0)),
    Mutation("a rehearsal does not limit how far ranks run", "a rehearsal holds ranks back", "rehearsal",
             method(Rehearsal, "limit", lambda original: lambda self: self._context.config.job.steps)),
    Mutation("the loss of a leaving node is no failure", "the job ends as its faults allow",
             "drain", method(Coordinator, "brings_back", lambda original: lambda self, keys, lost="":
                             original(self, keys))),
    Mutation("a moved rank does not fetch its snapshot", "a drain loses no step",
             "drain calm", lambda: patch.object(carrying_out, "_left_behind", lambda seen, launch, steps: ())),
    Mutation("an agent that leaves cleans up at once", "no rank restarts without a failure", "leave",
             method(AgentMachine, "handle", _leaves_without_a_word)),
    Mutation("a group's older slot is overwritten at once", "recovery restarts the fewest ranks", "lost",
             method(GroupSnapshots, "has", _overwrites_at_once)),
    Mutation("mates copy a snapshot that not all of them have", "recovery restarts the fewest ranks", "lost",
             method(SimAgent, "_round", _each_its_newest)),
    Mutation("a snapshot counts as durable before the agent knows which one gets its copies",
             "every rank can restore the committed step", "versions",
             lambda: patch.object(NextAgent, "alone", property(lambda self: not self.address))),
    Mutation("a dead agent stays in the ring", "no deadlock", "nodes", method(Ring, "turn", _orders_once)),
    Mutation("a new incarnation forgets a timeline's snapshots", "an agent clears its memory once per timeline", "back",
             method(AgentMachine, "__init__", _timeline_is_forgotten)),
    Mutation("a new master does not repeat the end", "no deadlock", "master",
             method(MasterMachine, "turn", _end_is_not_told_again)),
    Mutation("a checkpoint takes late parts of a rank that went back",
             "a checkpoint has one history", "back",
             lambda: all_of(method(Checkpoints, "_add", _parts_of_any_generation)(),
                          method(SimAgent, "end", _ranks_end_too)())),
    Mutation("a checkpoint keeps the parts of ranks that go back", "a checkpoint has one history", "lost",
             method(Checkpoints, "went_back", lambda original: lambda self, key, step: None)),
    Mutation("a checkpoint is complete before its parts are there", "checkpoints are whole", "calm",
             method(Checkpoints, "_add", _checkpoint_without_parts)),
    Mutation("a moved rank counts on both nodes", "a line of metrics is written once", "nodes",
             lambda: patch.object(LineAssembler, "moved", lambda self, agents: None)),
    Mutation("a waiting rank still owes its snapshot", "no deadlock", "room",
             method(SnapshotTaker, "settle", lambda original: lambda self: None)),
    Mutation("a ban ends with its plan", "no rank is placed on a banned node", "resize",
             method(NodesBanned, "apply", _bans_for_one_plan)),
    Mutation("a rank owes its snapshot after an operator", "the state is the undisturbed run's", "room calm",
             method(SnapshotTaker, "calls", lambda original: lambda self: None)),
    Mutation("a held rank keeps its lines and its snapshot", "no deadlock", "resize calm",
             method(RankMachine, "_hold", lambda original: lambda self, step: None)),
    Mutation("a rank ignores new addresses", "no deadlock", "process",
             method(RankMachine, "_wired", lambda original: lambda self, wire: None)),
    Mutation("extensions of a rank hear of no resize", "no deadlock", "calls resize",
             method(RankMachine, "_resized", lambda original: lambda self, sizes: None)),
    Mutation("a call keeps the ports of the first layout", "no deadlock", "resize",
             method(Call, "connect", _connects_once)),
    Mutation("a rank says no line again to the next agent", "no report is lost", "adopt",
             method(RankMachine, "begin", _says_nothing_again)),
    Mutation("a rank answers producers and consumers only once it has repeated its calls",
             "recovery restarts the fewest ranks", "process", method(RankMachine, "begin", _opens_late)),
    Mutation("a rank does not take the snapshot of its group before an operator", "no deadlock", "room group",
             lambda: patch.object(SnapshotTaker, "told", property(lambda self: False))),
    Mutation("a rank takes items before its mates have reported theirs", "ranks make no row twice without need",
             "shared", method(RankSharing, "before_call", lambda original: lambda self, op, step: None)),
    Mutation("a rank takes a snapshot without its group", "no deadlock", "room group",
             method(Barrier, "heard", _takes_it_alone)),
    Mutation("a group begins a step before it knows its snapshot", "no deadlock", "room group",
             method(Barrier, "heard", _goes_in_untold)),
    Mutation("each rank of a group decides its snapshots alone", "no deadlock", "apart",
             method(Appointments, "is_one", _decides_alone)),
    Mutation("a rank skips a snapshot that rank 0 has not appointed yet", "no deadlock", "apart",
             method(Appointments, "is_one", lambda original: lambda self, step: bool(original(self, step)))),
    Mutation("a rank waits for the commit of a step without snapshots", "no deadlock", "room",
             lambda: patch.object(SnapshotPlan, "newest_before", lambda self, step: step - 1)),
    Mutation("an item counts for every rank that has made it", "an item's metrics count once", "shared",
             lambda: patch.object(merge, "settled", _each_rank_counts)),
    Mutation("a rank does not repeat the metrics in its log", "an item's metrics count once", "versions shared",
             method(Mates, "made", _reports_no_former_life)),
    Mutation("a rank does not repeat lines of a lost report", "a line of metrics is written once", "calm",
             lambda: patch.object(MetricsMerger, "lines", lambda self: self.take())),
    Mutation("lines change within the steps that ranks may run already", "no report is lost", "calm",
             lambda: patch.object(apply, "with_cut", _cut_too_early)),
    Mutation("a restarted rank cuts its lines as a new job does", "no report is lost", "process",
             method(Meter, "cut", _cuts_every_step)),
    Mutation("a restarted rank forgets its begun line", "a line of metrics is written once", "process",
             method(Meter, "resume", lambda original: lambda self, partial: None)),
    Mutation("a checkpoint lacks the lines that ranks had begun", "a line of metrics is written once", "back",
             lambda: patch.object(lines, "begun_line", lambda *asked: None)),
    Mutation("a line does not wait for the next incarnation of a dead agent", "no report is lost", "passing",
             lambda: patch.object(JobState, "settled", property(lambda self: not self.busy))),
    Mutation("a line that ranks had begun is lost if their role has another size now", "no report is lost", "shrink",
             lambda: patch.object(lines, "begun_line", _of_the_same_size(begun_line))),
    Mutation("a line has steps of two layouts", "a line of metrics has one layout", "shrink",
             lambda: patch.object(relayout, "with_end", lambda cuts, step, restored: cuts)),
    Mutation("metrics of a repeated step stay", "a line of metrics is of one life", "back",
             lambda: patch.object(LineAssembler, "rolled_back", lambda self, step: None)),
    Mutation("a callee forgets its answers when the caller has finished the step",
             "a callee runs no call twice in one life", "calls", method(CalleeState, "__init__", _keeps_nothing)),
    Mutation("a callee does not know a call that it runs", "a callee runs no call twice in one life", "calls",
             method(CalleeState, "asked", _knows_no_call)),
    Mutation("a caller does not repeat the calls of a dead callee", "no call is lost", "calls",
             method(CallerState, "_take_back", lambda original: lambda self, rank, life: [])),
    Mutation("a restarted caller asks again for what it has heard", "a turn that was heard is not asked again",
             "conversations", method(CallHistory, "outcome", lambda original: lambda self, key: None)),
    Mutation("a turn comes back from the log with another token", "a conversation is repeated as it was",
             "conversations", method(CallHistory, "outcome", _changes_a_token)),
    Mutation("a turn is lost with the rank that samples it", "no call is lost",
             "conversations", method(CallerState, "_take_back", _loses_turns)),
    Mutation("a restarted caller begins another session than before", "a conversation is repeated as it was",
             "conversations", method(CallHistory, "session", lambda original: lambda self, key: None)),
    Mutation("a call that may have run in a dead rank goes to another one", "no action comes twice",
             "conversations", method(CallerState, "_is_lost", _only_sessions_are_lost)),
    Mutation("a restarted caller makes a call again that may have run", "no action comes twice",
             "conversations", method(CallHistory, "open", _forgets_what_left)),
    Mutation("an item with conversations is taken by another rank", "no action comes twice",
             "conversations", method(SharingState, "__init__", _steals)),
    Mutation("a rank begins items of other ranks early", "no action comes twice",
             "conversations", method(SharingState, "section", lambda original: lambda self, count: range(count))),
    Mutation("a restarted caller asks another rank, and takes the answer of the one it had asked before",
             "no answer of an older life is taken", "conversations", lambda: all_of(
                 method(CallHistory, "open", _asks_another_rank)(),
                 method(CallerState, "answered", lambda original: lambda self, key, *_: self.close(key))())),
    Mutation("a call that may have run is forgotten without an error", "no call is lost",
             "conversations", method(CallerState, "_take_back", _forgets_the_uncertain)),
    Mutation("a callee does not hear that a call is given up", "a call that is given up is cancelled",
             "conversations", method(CalleeState, "gives_up", lambda original: lambda self, *call: None)),
    Mutation("a callee forgets a call that was given up and must not run again",
             "a callee runs no call twice in one life", "conversations",
             method(CalleeState, "_is_void", lambda original: lambda self, known: known.given_up)),
    Mutation("a call that waits for a commit blocks earlier calls", "no call is lost",
             "calls", method(CalleeState, "begins", _first_come)),
    Mutation("a caller does not meet the new lives of callees", "no call is lost", "calls",
             method(CallerEnd, "rewire", lambda original: lambda self: self._leave())),
    Mutation("a caller tells no callee which step it has finished", "no call is lost", "calls",
             method(CallerEnd, "flush", lambda original: lambda self: None)),
    Mutation("a call leaves, and its log does not say so", "a turn that was heard is not asked again",
             "conversations", method(CallerEnd, "_leave", _leaves_unlogged)),
    Mutation("an answer that waits for its caller's new address is not sent", "no call is lost", "calls",
             method(CalleeEnd, "rewire", lambda original: lambda self: None)),
    Mutation("a callee does not hear which step its callers have finished", "no call is lost", "calls",
             method(CalleeEnd, "has_finished", lambda original: lambda self, *news: None)),
    Mutation("a repeated call that has an answer does not get it", "no call is lost", "calls",
             method(CalleeEnd, "_take", _repeats_no_answer)),
    Mutation("a job ends before its last state is on disk", "the last state is kept", "last",
             method(Progress, "_checkpoint_is_to_come", lambda original: lambda self, last, since: False)),
    Mutation("a job waits for a last state that could not be written", "no deadlock", "last",
             lambda: patch.object(agent_machine, "last_states", lambda ranks: (last_states(ranks)[0], "", -1))),
    Mutation("an agent does not report the kept states of ranks", "no deadlock", "last",
             lambda: patch.object(agent_machine, "last_states", lambda ranks: ([], *last_states(ranks)[1:]))),
    Mutation("a rank does not repeat an extension's message to another agent", "no deadlock", "messages",
             method(MasterMail, "_say_again", lambda original: lambda self: None)),
    Mutation("a new master gets no earlier messages of extensions in ranks", "no deadlock", "messages",
             method(Hooks, "hear", _hears_no_first_report)),
    Mutation("an agent passes on a late message of the master", "an extension gets no older message", "messages",
             method(AgentRank, "hear", _passes_on_late_messages)),
    Mutation("a job ends before its last step is durable", "no step is skipped", "nodes",
             lambda: all_of(patch.object(progress, "LAST_CHECKPOINT_S", 0.0), patch.object(progress, "LINES_S", 0.0),
                          _without("every_line"))),
)  # fmt: skip
