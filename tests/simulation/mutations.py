"""Faults put into the real machines, each of which some invariant must catch: that shows that the simulation bites."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from tests.simulation import checks
from tests.simulation import rank as sim_rank
from tests.simulation.agent import SimAgent
from tests.simulation.patches import all_of, method

from rolemesh_durable.protocol import edge as edges
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.agent import lifetime
from rolemesh_durable.protocol.agent.address_book import AddressBook
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.edge import InEdgeState
from rolemesh_durable.protocol.master import (
    carrying_out,
    clocks,
    commands,
    coordinator,
    hangs,
    ladder,
    own_time,
    progress,
    reports,
    transitions,
)
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.carrying_out import CarryingOut
from rolemesh_durable.protocol.master.checkpoint import Checkpoint
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.sets import Sets
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.wiring import Wiring
from rolemesh_durable.protocol.merge import LineAssembler

__all__ = ["MUTATIONS", "Mutation"]

apply = importlib.import_module("rolemesh_durable.protocol.master.apply")
"""The module, which has a function of its name."""


class Mutation(NamedTuple):
    """A fault: what it is, the invariant that catches it, in which family it shows, and how it is put in. `first`: the
    schedule with which the search for one that shows it begins, where it would come late."""

    name: str
    invariant: str
    family: str
    apply: Callable[[], Any]
    first: int = 0


def _no_epoch_fence(original: Any) -> Any:
    def handle(self: Any, message: Any, now: float) -> Any:
        self._epoch = -1
        return original(self, message, now)

    return handle


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
        known = self.ranks.get((order.role, order.rank))
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


def _no_budget(original: Any) -> Any:
    def propose(found: Any, view: Any, levels: Any, diagnosers: Any, floor: int = 0) -> Any:
        return original(found, msgspec.structs.replace(view, attempts=()), levels, diagnosers, floor)

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
    def checkpoint(state: Any) -> Any:
        kept = original(state)
        ranks = [msgspec.structs.replace(rank, generation=0) for rank in kept.ranks]
        return msgspec.structs.replace(kept, ranks=ranks)

    return checkpoint


def _launch_is_not_journalled(original: Any) -> Any:
    def tell(self: Any, happened: Any) -> None:
        if not isinstance(happened, transitions.RecoveryLaunched):
            return original(self, happened)
        return apply.apply(self.state, happened)

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


def _timeline_is_forgotten(original: Any) -> Any:
    def init(self: Any, *arguments: Any, timeline: int = 0, **more: Any) -> None:
        original(self, *arguments, **more)

    return init


def _end_is_not_told_again(original: Any) -> Any:
    def turn(self: Any, events: Any, now: float) -> Any:
        return [] if self.state.phase == "ended" else original(self, events, now)

    return turn


def _without(*names: str) -> Any:
    """Checks that would see the fault sooner are left out, so that the one behind them is tried."""
    return all_of(*(patch.object(checks.Checks, name, lambda self, *arguments: None) for name in names))


def _set_without_parts(original: Any) -> Any:
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
        rank, effects = self._context.state.ranks[part.role, part.rank], self._context._effects
        known, before = self._parts.setdefault(part.step, {}), len(effects)
        original(self, teller, msgspec.structs.replace(part, generation=rank.launch.generation))
        if (part.role, part.rank) in known:
            known[part.role, part.rank] = teller, part
        for at in range(before, len(effects)):
            if isinstance(effect := effects[at], me.CompleteSet):
                effects[at] = me.CompleteSet(effect.step, tuple(known[p.role, p.rank][1] for p in effect.parts))

    return add


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


def _leaves_without_a_word(original: Any) -> Any:
    def handle(self: Any, event: Any, now: float) -> Any:
        if isinstance(event, ae.Leave):
            self.lifetime.stopping = True
            return [*self._kill_all(), *self._clean_up_if_empty()]
        return original(self, event, now)

    return handle


def _forgets_what_was_proved(original: Any) -> Any:
    def moved(self: Any, key: Any) -> Any:
        self._spared = None
        return original(self, key)

    return moved


def _tells_the_latest_only(original: Any) -> Any:
    def message(self: Wiring, agent: Any) -> Any:
        wire = original(self, agent)
        last = self._version
        return wire and msgspec.structs.replace(
            wire, since=wire.since, peers=tuple(p for p in wire.peers if self._peers[p.role, p.rank][1] == last)
        )

    return message


def _needs_what_it_needed(original: Any) -> Any:
    def renew(self: Wiring, name: str, agent: Any, here: Any, moved: Any, copies_to: str) -> None:
        known = self._homes.get(name)
        before = known.needs if known is not None and known.incarnation == agent.incarnation else None
        original(self, name, agent, here, moved, copies_to)
        if before:
            self._homes[name].needs = before

    return renew


def _wired_once(original: Any) -> Any:
    def tell(self: AddressBook, key: Any, rank: Any, new: Any) -> Any:
        return original(self, key, rank, new) if key in new else []

    return tell


def _each_for_itself(original: Any) -> Any:
    def round_(self: SimAgent) -> Any:
        ranks = [rank for key, rank in self.ranks.items() if rank.alive and key not in self.copying]
        return [(rank, rank.snapshot) for rank in ranks if rank.snapshot >= 0]

    return round_


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("an agent obeys masters of older epochs", "one epoch acts", "master",
             method(AgentMachine, "_from_master", _no_epoch_fence)),
    Mutation("what is finished counts as safe", "what is committed can be restored", "storm",
             method(Progress, "_commit", _commit_what_is_finished)),
    Mutation("a restored rank counts as safe at once, without a replica", "what is committed can be restored",
             "process", method(CarryingOut, "_launch", _restored_is_safe), 127),
    Mutation("a consumer takes the last value of a restarted producer again", "the state is the undisturbed run's",
             "process", method(InEdgeState, "restart_source", _duplicates_are_taken), 141),
    Mutation("a consumer takes a value again, and only the shards are counted", "each shard once", "process",
             lambda: all_of(method(InEdgeState, "restart_source", _duplicates_are_taken)(),
                          _without("_as_undisturbed", "final_state")), 141),
    Mutation("a consumer asks one step too late", "no deadlock", "process",
             method(InEdgeState, "restart_source", _asks_too_late)),
    Mutation("values are held for one step less", "asks are answered", "storm",
             lambda: patch.object(sim_rank, "hold_of", _no_hold(edges.hold_of)), 65),
    Mutation("a stateless rank does not repeat its last sink call", "no deadlock", "process",
             method(sim_rank.SimRank, "_repeat", lambda original: lambda self: iter(()))),
    Mutation("an agent starts a rank beside its old process", "one process of a rank", "storm",
             lambda: all_of(method(AgentMachine, "_launch", _launches_again)(),
                          method(CarryingOut, "_gone", _does_not_wait_for_the_dead)())),
    Mutation("ranks are restored from the oldest snapshot they have", "nothing is restored before the commit",
             "storm", lambda: patch.object(
                 carrying_out, "resume_points", _old_snapshots_do(carrying_out.resume_points))),
    Mutation("ranks are restored from a snapshot that nobody has", "restored from what there is", "process",
             lambda: patch.object(
                 carrying_out, "resume_points", _restores_what_is_not_there(carrying_out.resume_points))),
    Mutation("the job goes back to the beginning whatever is on disk", "rolled back to what is whole", "all",
             method(Coordinator, "answered", _goes_back_too_far), 640),
    Mutation("a recovering master has forgotten the commits", "steps are committed once", "master",
             lambda: all_of(patch.object(JobState, "commit", lambda self, step: None), _without("told"))),
    Mutation("a checkpoint forgets how often ranks were started", "compaction forgets nothing", "storm",
             method(Checkpoint, "of", _forgets_generations)),
    Mutation("what is launched is not journalled", "what is journalled is what is so", "storm",
             method(MasterContext, "tell", _launch_is_not_journalled)),
    Mutation("a recovering master has forgotten what was launched", "no deadlock", "storm",
             lambda: all_of(method(MasterContext, "tell", _launch_is_not_journalled)(), _without("told"))),
    Mutation("a rank is started again under the generation it had", "generations grow", "agents",
             lambda: patch.object(apply, "_launched", _same_generation(apply._launched))),
    Mutation("levels have no budget", "the ladder ends", "endless",
             lambda: patch.object(coordinator, "propose", _no_budget(ladder.propose))),
    Mutation("an exhausted ladder is not told", "a failed job tells its trail", "endless",
             lambda: patch.object(coordinator, "propose", _ends_without_a_word(ladder.propose))),
    Mutation("a failure during a recovery is lost", "the job ends as it must", "process",
             lambda: all_of(method(MasterContext, "failed", _failures_meanwhile_are_lost)(), _without("told"))),
    Mutation("commands are said once", "the job ends as it must", "process",
             method(commands.Commands, "_send", _says_everything_once)),
    Mutation("of who is where, an agent is told the latest only", "the job ends as it must", "process",
             method(Wiring, "message", _tells_the_latest_only)),
    Mutation("a rank that comes to an agent brings no neighbours along", "the job ends as it must", "nodes",
             method(Wiring, "_renew", _needs_what_it_needed)),
    Mutation("a rank hears of a neighbour's new place only at its own start", "no deadlock", "process",
             method(AddressBook, "_tell", _wired_once)),
    Mutation("a master that has heard nothing for a moment takes an agent for dead",
             "nothing restarts without a failure", "calm", lambda: patch.object(reports, "SILENCE_S", 0.3)),
    Mutation("a master counts the time in which its store did not answer", "the job ends as it must", "stall",
             lambda: patch.object(own_time, "STALL_S", 1e9)),
    Mutation("a new master takes the times of another machine's clock for its own", "no deadlock", "master",
             lambda: all_of(patch.object(clocks, "_told", lambda at, **others: at),
                          patch.object(ladder, "FIRST_DELAY_S", 4.0))),
    Mutation("recoveries follow each other without a pause", "the job ends as it must", "passing",
             lambda: patch.object(ladder, "MAX_DELAY_S", 0.0)),
    Mutation("an operator that was judged may never take longer", "no deadlock", "slow",
             lambda: patch.object(hangs, "PATIENCE", 1.0)),
    Mutation("what an operator has proved to need is forgotten", "who works comes through", "slow",
             method(hangs.HangWatch, "moved", _forgets_what_was_proved)),
    Mutation("an agent that leaves is a failure", "nothing restarts without a failure", "leave",
             lambda: all_of(method(Coordinator, "leaves", lambda original: lambda self, agent, ranks: None)(),
                          patch.object(lifetime, "LEAVE_S", 0.5))),
    Mutation("an agent that leaves cleans up at once", "nothing restarts without a failure", "leave",
             method(AgentMachine, "handle", _leaves_without_a_word)),
    Mutation("a group's older slot is overwritten at once", "the smallest restart", "lost",
             method(sim_rank.SimRank, "_group_has", _overwrites_at_once)),
    Mutation("of mates, each one's newest snapshot is copied, whatever the others have", "the smallest restart", "lost",
             method(SimAgent, "_round", _each_for_itself), first=2_440),
    Mutation("a new incarnation forgets a timeline's snapshots", "memory is forgotten once a timeline", "back",
             method(AgentMachine, "__init__", _timeline_is_forgotten)),
    Mutation("the end is not told again after the master's death", "no deadlock", "master",
             method(MasterMachine, "turn", _end_is_not_told_again)),
    Mutation("a set takes parts that a rank had written before it went back, if they come late",
             "sets are of one history", "back",
             method(Sets, "_add", _parts_of_any_generation), first=3_700),
    Mutation("a set keeps the parts of ranks that go back", "sets are of one history", "lost",
             method(Sets, "went_back", lambda original: lambda self, key, step: None)),
    Mutation("a set is complete before its parts are there", "sets are whole", "calm",
             method(Sets, "_add", _set_without_parts)),
    Mutation("ranks that have moved are counted where they were, too", "each line once", "nodes",
             lambda: patch.object(LineAssembler, "moved", lambda self, agents: None)),
    Mutation("a job ends before its last step is durable", "no step is skipped", "nodes",
             lambda: all_of(patch.object(progress, "LAST_SET_S", 0.0), patch.object(progress, "LINES_S", 0.0),
                          _without("every_line"))),
)  # fmt: skip
