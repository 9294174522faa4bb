"""The critical path of flows with a known answer, and pieces without overlap."""

from __future__ import annotations

import pytest
from msgspec import structs

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.critical import Critical, critical_path
from rolemesh_facts.pieces import Piece, flat
from rolemesh_recorder.lines import FlowEdge, FlowFile, FlowOp

A, B, C = RankRef("a", 0), RankRef("b", 0), RankRef("c", 0)
OPS = (FlowOp(0, "a", "a.make"), FlowOp(1, "b", "b.work"), FlowOp(2, "c", "c.take"))
EDGES = (FlowEdge(0, 0, 1, "x", "split"), FlowEdge(1, 1, 2, "y", "split"))
FLOW = FlowFile("f", OPS, EDGES, {"a": 1, "b": 1, "c": 1}, {}, (("c", "b"),))
MS = 1000


def op(number: int, began: int, ended: int, step: int) -> Piece:
    return Piece(began * MS, ended * MS, "computing", number, -1, step)


def wait(edge: int, began: int, ended: int, step: int, phase: str = "waiting") -> Piece:
    return Piece(began * MS, ended * MS, phase, edge + 1, edge, step)


def path(lanes: dict[RankRef, list[Piece]], until: int = 10_000) -> Critical:
    return critical_path(FLOW, lanes, 0, until * MS)


def test_the_slow_role_of_a_pipeline_is_the_station() -> None:
    lanes: dict[RankRef, list[Piece]] = {A: [], B: [], C: []}
    for step in range(10):
        lanes[A].append(op(0, step * 100, step * 100 + 20, step))
        lanes[B].append(op(1, step * 100 + 25, step * 100 + 120, step))
        lanes[C] += [wait(1, step * 100 + 30, step * 100 + 121, step), op(2, step * 100 + 121, step * 100 + 125, step)]
    found = path(lanes)
    assert (found.stations[0].name, found.stations[0].share > 0.9) == ("b.work", True)


def test_a_producer_that_runs_ahead_is_not_the_station() -> None:
    """The queue is long: the producer ends later steps, waits for nobody, and ends last."""
    lanes = {
        A: [op(0, step * 50, step * 50 + 45, step) for step in range(20)],
        B: [op(1, 50 + step * 100, 149 + step * 100, step) for step in range(9)],
    }
    found = path(lanes)
    assert (found.stations[0].name, found.stations[0].share > 0.9) == ("b.work", True)


def test_a_wait_for_the_grant_leads_to_the_rank_that_is_behind() -> None:
    """All wait until the slowest has finished step 4. Then the first begins again, and the others wait for it."""
    lanes = {
        A: [*(op(0, 10 * step, 10 * step + 9, step) for step in range(5)), Piece(50 * MS, 600 * MS, "idle", step=4)],
        B: [wait(0, 0, 10, 0), *(op(1, 10 + 100 * step, 110 + 100 * step, step) for step in range(5))],
    }
    lanes[A].append(op(0, 600, 640, 5))
    lanes[B] += [Piece(510 * MS, 600 * MS, "idle", step=4), wait(0, 600, 641, 5), op(1, 641, 700, 5)]
    found = {station.name: round(station.share, 2) for station in path(lanes).stations}
    assert found["b.work"] == pytest.approx((500 + 59) / 700, abs=0.01)
    assert found["b: waits for the master"] == pytest.approx(90 / 700, abs=0.01)


def test_the_start_of_the_job_is_not_on_the_path() -> None:
    lanes = {A: [Piece(0, 5000 * MS, "setup"), op(0, 5000, 5100, 0), op(0, 5100, 5200, 1)]}
    found = path(lanes)
    assert ([station.name for station in found.stations], found.since) == (["a.make"], 5000 * MS)


def test_a_rank_whose_last_calls_are_too_short_for_the_record_does_not_hold_the_job_back() -> None:
    """The producer has one slow call in its record, and ended step 9, as its account says."""
    lanes = {A: [op(0, 0, 50, 0)], B: [op(1, 50 + step * 100, 150 + step * 100, step) for step in range(10)]}
    assert critical_path(FLOW, lanes, 0, 10_000 * MS).stations[0].name == "a.make"
    found = critical_path(FLOW, lanes, 0, 10_000 * MS, {A: 9, B: 9})
    assert (found.stations[0].name, found.stations[0].share > 0.9) == ("b.work", True)


def test_the_time_without_a_process_is_a_station_of_its_own() -> None:
    again = [Piece(1000 * MS, 1100 * MS, "setup", generation=1), op(0, 1100, 1200, 1)._replace(generation=1)]
    found = path({A: [op(0, 0, 100, 0), *again]})
    assert (found.stations[0].name, found.stations[0].share) == ("a: no process before its restart", 0.75)


def test_a_slow_edge_is_the_station() -> None:
    """The value of a step is made long before it comes, and its maker waits for nothing else."""
    lanes: dict[RankRef, list[Piece]] = {A: [], B: []}
    for step in range(10):
        at = step * 100
        lanes[A] += [op(0, at, at + 10, step), wait(0, at + 10, at + 100, step, "blocked")]
        lanes[B] += [wait(0, at, at + 90, step), op(1, at + 90, at + 100, step)]
    found = path(lanes)
    assert (found.stations[0].kind, found.stations[0].edge) == ("edge", 0)
    assert found.stations[0].share > 0.6


def test_starved_credits_lead_to_the_consumer() -> None:
    lanes: dict[RankRef, list[Piece]] = {A: [], B: []}
    for step in range(10):
        at = step * 100
        lanes[A] += [wait(0, at, at + 91, step, "blocked"), op(0, at + 91, at + 95, step)]
        lanes[B].append(op(1, at - 8, at + 90, step))
    found = path(lanes)
    assert found.stations[0].name == "b.work"


def test_the_slower_of_two_ranks_is_on_the_path() -> None:
    slow = RankRef("b", 1)
    lanes: dict[RankRef, list[Piece]] = {B: [], slow: [], C: []}
    for step in range(10):
        at = step * 100
        lanes[B].append(op(1, at, at + 30, step))
        lanes[slow].append(op(1, at, at + 95, step))
        lanes[C] += [wait(1, at, at + 96, step), op(2, at + 96, at + 99, step)]
    found = path(lanes)
    own = {ref: sum(hop.end - hop.t for hop in found.hops if hop.ref == ref) for ref in (B, slow)}
    assert own[slow] > 20 * own[B]


def test_a_call_leads_to_the_role_that_serves_it() -> None:
    pair_of_any_rank = -2 - (0 << 20 | 0)
    lanes = {
        B: [Piece(10 * MS, 90 * MS, "serving", -1, -1, 0)],
        C: [op(2, 0, 5, 0), Piece(5 * MS, 92 * MS, "calling", 2, pair_of_any_rank, 0), op(2, 92, 100, 0)],
    }
    found = path(lanes)
    assert (found.stations[0].name, found.stations[0].share > 0.7) == ("b: serving calls", True)


def test_the_path_leads_through_a_call_that_is_too_short_for_the_record() -> None:
    """The loop's value is made at once, so its maker's other call is what the loop waits for."""
    ops = (FlowOp(0, "a", "a.make"), FlowOp(1, "c", "c.weights"), FlowOp(2, "c", "c.take"))
    edges = (FlowEdge(0, 1, 0, "weights", "broadcast"), FlowEdge(1, 0, 2, "batch", "split"))
    flow = FlowFile("f", ops, edges, FLOW.sizes, {})
    lanes: dict[RankRef, list[Piece]] = {A: [], C: []}
    for step in range(10):
        at = step * 100
        lanes[A] += [wait(0, at, at + 91, step)._replace(op=0), op(0, at + 91, at + 95, step)]
        lanes[C] += [wait(1, at + 91, at + 96, step), op(2, at + 96, at + 190, step)]
    found = critical_path(flow, lanes, 0, 10_000 * MS)
    assert (found.stations[0].name, found.stations[0].share > 0.8) == ("c.take", True)


def test_a_wait_for_a_turn_leads_to_the_rank_whose_turn_it_was() -> None:
    flow = structs.replace(FLOW, turns=(("a", "c"),))
    lanes: dict[RankRef, list[Piece]] = {A: [], C: []}
    for step in range(10):
        at = step * 100
        lanes[A] += [Piece(at * MS, (at + 90) * MS, "turn", 0, -1, step), op(0, at + 90, at + 95, step)]
        lanes[C] += [wait(1, at + 85, at + 96, step), op(2, at + 96, at + 189, step)]
    found = critical_path(flow, lanes, 0, 10_000 * MS)
    assert (found.stations[0].name, found.stations[0].share > 0.8) == ("c.take", True)


def test_a_wait_for_a_group_leads_to_the_rank_that_came_last() -> None:
    late = RankRef("b", 1)
    lanes: dict[RankRef, list[Piece]] = {B: [], late: []}
    for step in range(10):
        at = step * 100
        lanes[B] += [Piece(at * MS, (at + 90) * MS, "gathering", 1, -1, step), op(1, at + 90, at + 100, step)]
        lanes[late] += [wait(0, at, at + 90, step), op(1, at + 90, at + 99, step)]
    found = path(lanes)
    assert (found.stations[0].kind, found.stations[0].edge, found.stations[0].share > 0.8) == ("edge", 0, True)


def test_a_service_that_waits_leads_to_the_caller() -> None:
    pair_of_any_rank = -2 - (0 << 20 | 0)
    lanes: dict[RankRef, list[Piece]] = {B: [], C: []}
    for step in range(10):
        at = step * 100
        lanes[C] += [
            op(2, at, at + 90, step),
            Piece((at + 90) * MS, (at + 99) * MS, "calling", 2, pair_of_any_rank, step),
        ]
        lanes[B] += [Piece(at * MS, (at + 91) * MS, "following", -1, -1, step)]
        lanes[B] += [Piece((at + 91) * MS, (at + 98) * MS, "serving", -1, -1, step)]
    found = path(lanes)
    assert (found.stations[0].name, found.stations[0].share > 0.8) == ("c.take", True)


LOOP = FlowFile(
    "f",
    (FlowOp(0, "c", "c.ask"), FlowOp(1, "a", "a.train"), FlowOp(2, "b", "b.load")),
    (FlowEdge(0, 0, 1, "rows", "split"), FlowEdge(1, 1, 2, "weights", "broadcast")),
    {"a": 1, "b": 1, "c": 1},
    {},
    (("c", "b"),),
)
"""C asks B, A trains what comes of it, and B loads the weights of A."""


def loop(held: bool) -> dict[RankRef, list[Piece]]:
    """Return ten steps of `LOOP`, in which B serves for 30 ms and A trains for 60 ms. C asks again at once.

    `held`: the calls of a step wait for its weights. Otherwise B serves them while A trains.
    """
    lanes: dict[RankRef, list[Piece]] = {A: [], B: [], C: []}
    for step in range(10):
        at = step * 100
        served = [(at, at + 30)] if held else [(at, at + 30), (at + 31, at + 96)]
        lanes[B].append(Piece((at - 1) * MS, (at + 95) * MS, "waiting", 2, 1, step))
        lanes[B] += [Piece(begin * MS, end * MS, "serving", 2, -1, step) for begin, end in served]
        lanes[C].append(Piece((at - 65) * MS, (at + 30) * MS, "calling", 0, -2, step))
        lanes[A] += [Piece((at - 5) * MS, (at + 32) * MS, "waiting", 1, 0, step), op(1, at + 32, at + 94, step)]
    return {ref: sorted(pieces, key=lambda piece: (piece.t, -piece.end)) for ref, pieces in lanes.items()}


def test_calls_that_wait_for_weights_lead_to_the_trainer() -> None:
    found = {each.name: each.share for each in critical_path(LOOP, loop(held=True), 0, 1000 * MS).stations}
    assert (found["a.train"] > 0.55, 0.2 < found["b: serving calls"] < 0.4) == (True, True), found


def test_an_operator_that_waits_leads_to_the_producer_whatever_its_rank_serves_meanwhile() -> None:
    """The path begins with the loading role itself: weights come from the trainer, which is slower than the calls."""
    lanes = loop(held=False)
    lanes[B] = [*lanes[B], op(2, 995, 1100, 9)]
    del lanes[C]
    found = {each.name: each.share for each in critical_path(LOOP, lanes, 900 * MS, 1100 * MS).stations}
    assert (found["b.load"] > 0.5, found["a.train"] > 0.25) == (True, True), found


def test_a_call_of_a_rank_whose_operator_calls_another_leads_to_that_one() -> None:
    """C asks A, whose service waits until A's own operator has an answer of B."""
    flow = structs.replace(FLOW, callers=(("c", "a"), ("a", "b")))
    lanes: dict[RankRef, list[Piece]] = {A: [], B: [], C: []}
    for step in range(10):
        at = step * 100
        lanes[C] += [op(2, at, at + 5, step), Piece((at + 5) * MS, (at + 99) * MS, "calling", 2, -2, step)]
        lanes[A] += [op(0, at, at + 7, step), Piece((at + 7) * MS, (at + 97) * MS, "calling", 0, -2 - (1 << 20), step)]
        lanes[A] += [op(0, at + 97, at + 99, step)]
        lanes[B] += [Piece((at + 9) * MS, (at + 95) * MS, "serving", -1, -1, step)]
    found = critical_path(flow, lanes, 0, 10_000 * MS).stations[0]
    assert (found.name, found.role, found.share > 0.8) == ("b: serving calls", "b", True)


def test_an_empty_record_has_no_path() -> None:
    assert path({}).stations == ()
    assert path({A: [], B: [wait(0, 0, 5, 0)]}).stations == ()


def test_an_inner_stretch_takes_its_time_from_the_outer_one() -> None:
    outer, inner, later = op(1, 0, 100, 0), wait(1, 20, 60, 0), op(1, 150, 160, 1)
    found = [(piece.t // MS, piece.end // MS, piece.phase) for piece in flat([outer, inner, later])]
    assert found == [(0, 20, "computing"), (20, 60, "waiting"), (60, 100, "computing"), (150, 160, "computing")]
