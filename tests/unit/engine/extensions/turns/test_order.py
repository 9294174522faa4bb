"""Turns on shared slots and barriers of groups, played through: one role loaded at a time, nobody waits for ever.

Ranks move in any order and are killed at any moment. As in a real rank, one that is inside a call neither answers who
asks for values nor takes a word at the barrier; and inside a group's call, it waits for all of the group.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh.api.partition import Broadcast
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity
from rolemesh.placement import Assignment, PlacementPlan, Slot
from rolemesh_durable.extensions.turns.order import ABSENT, STARTING, Positions, Row, is_before, is_free
from rolemesh_durable.extensions.turns.slots import taking_turns
from rolemesh_durable.protocol.rank.barrier import ARRIVE, GO, LEAVE, LEFT, TAKE, WANT, Barrier

STEPS = 3
ROLES = ("a", "b", "c", "d")


@dataclass
class Rank:
    """A rank as far as turns are concerned. `agenda` are the calls that are left, with their steps."""

    key: RankRef
    slot: int
    page: dict[RankRef, Row]
    generation: int = 0
    resume: int = -1
    state: str = "starting"
    resident: bool = False
    inside: bool = False
    agenda: list[tuple[int, int]] = field(default_factory=list)
    asked: dict[RankRef, int] = field(default_factory=dict)
    fetched: set[tuple[int, int, RankRef]] = field(default_factory=set)
    done: set[tuple[int, int]] = field(default_factory=set)
    words: deque[tuple[RankRef, int, int, int]] = field(default_factory=deque)
    answer: int = -1

    @property
    def position(self) -> int:
        return self.page[self.key].position

    @property
    def listens(self) -> bool:
        return self.state not in ("dead", "starting", "inside", "setting up")

    def rows(self) -> tuple[list[Row], int]:
        return list(self.page.values()), list(self.page).index(self.key)

    def publish(self, position: int | None = None, *, loaded: bool | None = None) -> None:
        self.page[self.key] = Row(
            self.position if position is None else position, self.resident if loaded is None else loaded
        )


class Play:
    """A job whose ranks move in any order, and are killed at any moment."""

    def __init__(self, graph: LogicalGraph, size: int, sharing: int, collective: set[str], seed: int) -> None:
        self.graph, self.collective, self.random, self.size = graph, collective, Random(seed), size
        self.activity, self.positions = Activity(graph), Positions(graph)
        keys = [(role, rank) for role in graph.roles for rank in range(size)]
        place = {key: key[1] if graph.roles.index(key[0]) < sharing else size + at for at, key in enumerate(keys)}
        number = {old: new for new, old in enumerate(sorted(set(place.values())))}
        slots = tuple(Slot(new, "node", 1, turns=True) for new in number.values())
        plan = PlacementPlan(slots, tuple(Assignment(*key, number[place[key]]) for key in keys))
        shared = {slot: dict.fromkeys(ranks, Row(STARTING)) for slot, ranks in taking_turns(plan).items()}
        self.ranks = {
            key: Rank(key, number[place[key]], shared.get(number[place[key]], {key: Row(STARTING)})) for key in keys
        }
        self.barriers = {role: Barrier(size) for role in collective}

    def play(self, kills: int) -> None:
        """Until all ranks are done; fails if that never comes."""
        for rank in self.ranks.values():
            self.start(rank)
        for _ in range(100_000):
            if kills and self.random.random() < 0.03:
                kills -= 1
                self.kill(self.random.choice([*self.ranks.values()]))
            order = self.random.sample([*self.ranks.values()], len(self.ranks))
            moved = any(self.move(rank) for rank in order)
            for slot in {rank.slot for rank in order}:
                there = {rank.key[0] for rank in order if rank.slot == slot and rank.resident}
                assert len(there) <= 1, f"{there} are loaded on slot {slot}"
            if all(rank.state == "done" for rank in order):
                return
            assert moved, f"deadlock: {[(r.key, r.state, r.agenda[:1], r.page[r.key]) for r in order]}"
        raise AssertionError("they move for ever")

    def group(self, rank: Rank) -> list[Rank]:
        role = rank.key[0]
        return [r for r in self.ranks.values() if r.key[0] == role] if role in self.collective else [rank]

    def start(self, rank: Rank) -> None:
        rank.state, rank.resident, rank.inside = "starting", False, False
        rank.asked, rank.fetched = {}, set()
        rank.words.clear()
        rank.done = {(op, step) for op, step in rank.done if step <= rank.resume}
        rank.agenda = [
            (op.id, step)
            for step in range(rank.resume + 1, STEPS)
            for op in self.graph.of_role(rank.key[0])
            if self.activity.active(op.id, step)
        ]
        rank.publish(STARTING)

    def kill(self, victim: Rank) -> None:
        """It and its group go back to a step that all of them have finished."""
        group = self.group(victim)
        if any(rank.state == "done" for rank in group):
            return
        finished = min(min((step for _, step in rank.agenda), default=STEPS) - 1 for rank in group)
        back = max(-1, finished - self.random.randrange(2))
        for rank in group:
            rank.resume, rank.state, rank.resident = max(back, rank.resume), "dead", False
            rank.generation += 1
            rank.publish(ABSENT)
        if victim.key[0] in self.collective:
            self.barriers[victim.key[0]] = Barrier(self.size)

    # ------------------------------------------------------------------------------------------------ one small thing

    def move(self, rank: Rank) -> bool:
        """One small thing that this rank can do now; False if there is none."""
        if rank.words and rank.listens:
            self.word(rank, *rank.words.popleft())
            return True
        match rank.state:
            case "dead":
                self.start(rank)
            case "starting":
                if any(other.state == "dead" for other in self.ranks.values()):
                    return False  # addresses come when all are up
                rank.state = "idle"
                rank.publish(self.positions.setup(rank.key[0]))
            case "idle":
                return self.wait(rank)
            case "claiming":
                if is_free(*rank.rows()):
                    self.arrive(rank)
                else:
                    rank.state = "idle"
                    rank.publish()
            case "gathering" | "leaving":
                return self.gather(rank)
            case "inside" | "setting up":
                return self.work(rank)
            case _:
                return False
        return True

    def is_set_up(self, rank: Rank) -> bool:
        return rank.position >= len(self.graph.roles)

    def wait(self, rank: Rank) -> bool:
        if rank.resident and is_before(*rank.rows()):
            rank.resident = False
            rank.publish()
            return True
        if self.is_set_up(rank):
            if self.ask(rank):
                return True
            if not self.needed(rank) <= rank.fetched:
                return False
        if not is_free(*rank.rows()):
            return False
        rank.state = "claiming"
        rank.publish(loaded=True)
        return True

    def needed(self, rank: Rank) -> set[tuple[int, int, RankRef]]:
        op, step = rank.agenda[0]
        return {
            (edge.src, step - edge.lag, other)
            for edge in self.graph.inputs(op)
            for other in self.ranks
            if other[0] == self.graph.ops[edge.src].role
        }

    def ask(self, rank: Rank) -> bool:
        """Ask a rank, once in each of its generations: it gives what it has, and from then on what it makes."""
        for giver in self.ranks.values():
            if rank.asked.get(giver.key) != giver.generation and giver.listens and self.is_set_up(giver):
                rank.asked[giver.key] = giver.generation
                rank.fetched |= {(*value, giver.key) for value in giver.done}
                return True
        return False

    def arrive(self, rank: Rank) -> None:
        if rank.key[0] in self.collective:
            rank.state, rank.answer = "gathering", -1
            self.say(rank, (rank.key[0], 0), ARRIVE)
        else:
            self.enter(rank)

    def say(self, rank: Rank, whom: RankRef, word: int, position: int | None = None) -> None:
        at = rank.position if position is None else position
        self.ranks[whom].words.append((rank.key, rank.generation, word, at))

    def word(self, rank: Rank, sender: RankRef, generation: int, word: int, position: int) -> None:
        if generation != self.ranks[sender].generation:
            return
        if word in (ARRIVE, LEAVE):
            for number, answer in self.barriers[rank.key[0]].heard(sender[1], word, position):
                self.say(rank, (rank.key[0], number), answer, position)
        elif position == rank.position:
            rank.answer = word

    def gather(self, rank: Rank) -> bool:
        if rank.answer == GO:
            self.enter(rank)
        elif rank.answer == LEFT:
            rank.state = "idle"
            rank.publish()
        elif rank.state == "gathering" and is_before(*rank.rows()):
            rank.state = "leaving"
            self.say(rank, (rank.key[0], 0), LEAVE)
        else:
            return False
        return True

    def enter(self, rank: Rank) -> None:
        rank.state, rank.resident = "inside" if self.is_set_up(rank) else "setting up", True
        rank.publish()

    def work(self, rank: Rank) -> bool:
        """A group is through when all of its ranks are inside."""
        if not all(other.state == rank.state and other.position == rank.position for other in self.group(rank)):
            return False
        for member in self.group(rank):
            self.finish(member)
        return True

    def finish(self, rank: Rank) -> None:
        if self.is_set_up(rank):
            value = rank.agenda.pop(0)
            rank.done.add(value)
            for other in self.ranks.values():
                if other.asked.get(rank.key) == rank.generation:
                    other.fetched.add((*value, rank.key))
        rank.state = "idle"
        if rank.agenda:
            rank.publish(self.positions.call(*rank.agenda[0]))
        else:
            rank.state, rank.resident = "done", False
            rank.publish(ABSENT)


@st.composite
def graphs(draw: st.DrawFn) -> LogicalGraph:
    """Calls of two to four roles; values go on to later calls, or back with a lag."""
    roles = draw(st.lists(st.sampled_from(ROLES), min_size=2, max_size=6))
    ops = tuple(OpCall(at, role, "f", f"{role}.f#{at}", Broadcast()) for at, role in enumerate(roles))
    pairs = sorted(draw(st.sets(st.tuples(*[st.integers(0, len(ops) - 1)] * 2), max_size=8)))

    def graph_of(pairs: list[tuple[int, int]]) -> LogicalGraph:
        edges = [
            Edge(number, src, dst, f"x{number}", Broadcast(), Broadcast(), lag=int(src >= dst))
            for number, (src, dst) in enumerate(pairs)
        ]
        return LogicalGraph("g", ops, tuple(edges))

    never = Activity(graph_of(pairs)).never()
    return graph_of([(src, dst) for src, dst in pairs if dst not in never])


@settings(max_examples=600, deadline=None)
@given(
    graph=graphs(),
    size=st.integers(1, 3),
    sharing=st.integers(0, 4),
    collective=st.sets(st.sampled_from(ROLES)),
    kills=st.integers(0, 6),
    seed=st.integers(0, 10**6),
)
def test_any_job_ends_with_one_role_loaded_per_slot(
    graph: LogicalGraph, size: int, sharing: int, collective: set[str], kills: int, seed: int
) -> None:
    Play(graph, size, sharing, collective if size > 1 else set(), seed).play(kills)


def test_a_turn_is_free_when_nobody_is_before_or_loaded_behind() -> None:
    assert is_free([Row(5), Row(5, loaded=True), Row(7)], 0)
    assert not is_free([Row(5), Row(4)], 0)
    assert not is_free([Row(5), Row(7, loaded=True)], 0)
    assert is_free([Row(5), Row(ABSENT)], 0)


def test_the_gate_opens_when_all_are_there_for_the_same_call() -> None:
    barrier = Barrier(2)
    assert barrier.heard(0, ARRIVE, 3) == ()
    assert barrier.heard(1, ARRIVE, 3) == ((0, GO), (1, GO))
    assert barrier.heard(1, LEAVE, 3) == (), "it is too late to step back"
    assert barrier.heard(1, ARRIVE, 4) == ()
    assert barrier.heard(1, LEAVE, 4) == ((1, LEFT),)
    assert barrier.heard(0, ARRIVE, 4) == ()
    assert barrier.heard(1, ARRIVE, 4) == ((0, GO), (1, GO))


def test_a_rank_that_wants_a_snapshot_informs_its_whole_group_before_any_member_enters() -> None:
    barrier = Barrier(2)
    assert barrier.heard(0, ARRIVE, 3) == ()
    assert barrier.heard(1, WANT, 7) == ((0, TAKE), (1, TAKE))
    assert barrier.heard(0, WANT, 7) == (), "they have been told"
    assert barrier.heard(1, ARRIVE, 3) == ((0, GO), (1, GO))


@pytest.mark.parametrize("roles", [("b", "a"), ("a", "b")])
def test_positions_order_setups_then_steps_then_the_end(roles: tuple[str, str]) -> None:
    ops = tuple(OpCall(at, role, "f", f"{role}.f", None) for at, role in enumerate(roles))
    at = Positions(LogicalGraph("g", ops, ()))
    first, second = roles
    inside = [at.repeat(0, 0), at.repeat(1, 0), at.call(0, 1), at.call(1, 1)]
    order = [at.setup(first), at.setup(second), at.call(0, 0), at.call(1, 0), *inside, at.last(first, 2)]
    assert order == sorted(set(order))
    assert order[0] > STARTING
    assert at.last(second, 10**9) < ABSENT
