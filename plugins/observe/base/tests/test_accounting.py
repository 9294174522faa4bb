"""From spans and totals to lines: pure decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rolemesh_durable.api.extensions import PHASES, Outgoing, Span, Totals, totals_of
from rolemesh_durable.protocol.rank.page import PHASE, SINCE_NS
from rolemesh_recorder.accounting import MANY, Accounts, Spans, Wall
from rolemesh_recorder.coarsening import coarsened
from rolemesh_recorder.lines import Account

S = 1_000_000_000
MS = 1_000_000
WALL = Wall(0, 0)
NUMBERS = {name: number for number, name in PHASES.items()}
IDLE, COMPUTING, WAITING, CALLING, SERVING = (
    NUMBERS[n] for n in ("idle", "computing", "waiting", "calling", "serving")
)


def span(phase: int, began: int, ended: int, edge: int = -1) -> Span:
    return Span(phase, 0, edge, 3, began, ended)


def totals(**given: Any) -> Totals:
    nothing = Totals(finished=-1, computing=0, edges={}, idling=0, saving=0, now=(IDLE, -1, 0))
    return nothing._replace(**given)


def no_edges() -> tuple[dict[int, Outgoing], dict[int, int]]:
    return {}, {}


def test_a_short_span_counts_and_has_no_line() -> None:
    spans = Spans(WALL)
    spans.least_ns = 4 * MS
    assert spans.take(span(CALLING, 0, 3 * MS)) == []
    assert spans.own == {"calling": 3 * MS}


def test_time_in_a_call_that_runs_during_a_wait_counts_once() -> None:
    spans = Spans(WALL)
    spans.take(span(SERVING, 2 * S, 5 * S))
    spans.take(span(WAITING, 1 * S, 7 * S, edge=4))
    accounts = Accounts(WALL, spans, lambda: totals(edges={4: 6 * S}), no_edges, 0)
    assert accounts.next(7 * S).spent == {}, "counted before the first account"
    spans = Spans(WALL)
    found = totals()
    accounts = Accounts(WALL, spans, lambda: found, no_edges, 0)
    spans.take(span(SERVING, 2 * S, 5 * S))
    spans.take(span(WAITING, 1 * S, 7 * S, edge=4))
    found = totals(edges={4: 6 * S})
    assert accounts.next(8 * S).spent == {"serving": 3_000_000, "edge 4": 3_000_000}


def test_a_service_that_runs_in_a_wait_leaves_the_wait_its_time_before_it() -> None:
    """The account ends while the call goes on: the second before it belongs to the wait."""
    spans = Spans(WALL)
    found = totals(now=(WAITING, 4, 1))
    accounts = Accounts(WALL, spans, lambda: found, no_edges, 0)
    found = totals(now=(SERVING, -1, 2 * S), around=(WAITING, 4, 1))
    assert accounts.next(3 * S).spent == {"edge 4": 1_999_999, "serving": 1_000_000}
    spans.take(span(SERVING, 2 * S, 4 * S))
    found = totals(now=(WAITING, 4, 1))
    assert accounts.next(5 * S).spent == {"edge 4": 1_000_000, "serving": 1_000_000}


def test_calls_that_an_operator_answers_are_not_its_own_time() -> None:
    spans = Spans(WALL)
    found = totals()
    accounts = Accounts(WALL, spans, lambda: found, no_edges, 0)
    spans.take(span(SERVING, 1 * S, 3 * S))
    spans.take(span(COMPUTING, 0, 4 * S))
    found = totals(computing=4 * S)
    assert accounts.next(4 * S).spent == {"serving": 2_000_000, "computing": 2_000_000}


def test_many_short_calls_in_a_row_have_one_line() -> None:
    """A gap that is longer than the call ends the line, and so does half a second."""
    spans = Spans(WALL)
    lines = [line for at in range(1000) for line in spans.take(span(SERVING, at * MS, at * MS + 700_000))]
    assert [(line.t, line.d) for line in lines] == [(0, 500_700)]
    lines = spans.take(span(SERVING, 1001 * MS, 1001 * MS + 700_000)) + spans.rest(2 * S)
    assert [(line.t, line.d) for line in lines] == [(501_000, 498_700)]
    assert spans.own == {"serving": 1001 * 700_000}


def test_the_present_phase_counts_up_to_the_end_of_the_account() -> None:
    found = totals(now=(COMPUTING, -1, 1 * S))
    accounts = Accounts(WALL, Spans(WALL), lambda: found, no_edges, 1 * S)
    first = accounts.next(3 * S)
    found = totals(computing=4 * S, now=(IDLE, -1, 5 * S))
    second = accounts.next(6 * S)
    assert (first.spent, second.spent) == ({"computing": 2_000_000}, {"computing": 2_000_000, "idle": 1_000_000})
    assert (second.t, second.d) == (3_000_000, 3_000_000)


def test_a_phase_that_began_before_spans_within_it_counts_without_them() -> None:
    """A call shows the begin of the oldest open call; a service that serves in between follows since the first call."""
    spans = Spans(WALL)
    found = totals()
    accounts = Accounts(WALL, spans, lambda: found, no_edges, 0)
    for at in range(5000):
        spans.take(span(SERVING, at * 2 * MS, at * 2 * MS + MS))
    found = totals(now=(NUMBERS["following"], -1, 1))
    assert accounts.next(11 * S).spent == {"serving": 5_000_000, "following": pytest.approx(6_000_000, abs=10_000)}


def test_an_operator_that_waits_for_answers_computes_between_them_also_before_it_ends() -> None:
    page = SimpleNamespace(fields=[0] * 12, waits=lambda edges: {})
    meter = SimpleNamespace(began=1, ended=0, busy=0, idling=0, saving=0, around=(IDLE, -1, 0))
    job = SimpleNamespace(graph=SimpleNamespace(edges=()))
    rank: Any = SimpleNamespace(status_page=page, meter=meter, job=job, ctx=SimpleNamespace(role="agent"))
    page.fields[PHASE], page.fields[SINCE_NS] = COMPUTING, 1
    spans = Spans(WALL)
    accounts = Accounts(WALL, spans, lambda: totals_of(rank), no_edges, 0)
    assert accounts.next(1 * S).spent == {"computing": 999_999}
    page.fields[PHASE], page.fields[SINCE_NS] = CALLING, 2 * S
    assert accounts.next(3 * S).spent == {"computing": 1_000_000, "calling": 1_000_000}
    spans.take(span(CALLING, 2 * S, 4 * S))
    page.fields[PHASE], page.fields[SINCE_NS] = COMPUTING, 4 * S
    assert accounts.next(6 * S).spent == {"computing": 2_000_000, "calling": 1_000_000}
    meter.began, meter.ended, meter.busy, page.fields[PHASE] = 0, 7 * S, 5 * S, IDLE
    page.fields[SINCE_NS] = 0
    spans.take(span(COMPUTING, 1, 7 * S))
    assert accounts.next(7 * S).spent == {"computing": 1_000_000}


def test_a_rank_that_loads_has_an_account_of_it_before_the_load_ends() -> None:
    loads = totals(now=(NUMBERS["loading"], -1, 1))
    assert Accounts(WALL, Spans(WALL), lambda: loads, no_edges, 0).next(1 * S).spent == {"loading": 999_999}


def test_no_account_has_more_than_its_time() -> None:
    """A phase may show as computing until its span tells what it was."""
    spans = Spans(WALL)
    found = totals(now=(COMPUTING, -1, 1))
    accounts = Accounts(WALL, spans, lambda: found, no_edges, 0)
    first = accounts.next(1 * S).spent
    spans.take(span(NUMBERS["turn"], 0, 1500 * MS))
    found = totals()
    second = accounts.next(1600 * MS).spent
    assert (first, second) == ({"computing": 999_999}, {"turn": 1_500_000, "computing": -900_000})
    found = totals(computing=3 * S)
    assert [accounts.next((each + 3) * S).spent["computing"] for each in range(3)] == [1_400_000, 1_000_000, 500_001]


def test_the_time_before_the_first_account_is_not_taken_from_later_ones() -> None:
    found = totals(now=(IDLE, -1, 1))
    accounts = Accounts(WALL, Spans(WALL), lambda: found, no_edges, 9 * S)
    found = totals(idling=700 * MS)
    assert accounts.next(10 * S).spent == {"idle": 700_000}


def test_accounts_add_up_to_the_totals_whatever_their_ends_are() -> None:
    found = totals()
    accounts = Accounts(WALL, Spans(WALL), lambda: found, no_edges, 0)
    summed = 0
    for at in range(1, 2000):
        found = totals(computing=at * 1_234_567, finished=at)
        summed += accounts.next(at * 2 * MS).spent.get("computing", 0)
    assert abs(summed * 1000 - 1999 * 1_234_567) < 1_300_000


def test_steps_of_a_former_life_do_not_count() -> None:
    """Before the first step of a restored rank, its totals name no finished step."""
    found = totals()
    accounts = Accounts(WALL, Spans(WALL), lambda: found, no_edges, 0, resume=2163)
    steps = [accounts.next(1 * S).steps]
    for finished in (2194, 2230):
        found = totals(finished=finished)
        steps.append(accounts.next(2 * S).steps)
    assert steps == [0, 31, 36]


def test_an_account_has_the_bytes_since_the_last_one_also_after_an_edge_began_again() -> None:
    ends = {3: Outgoing(100, 0, -1)}
    accounts = Accounts(WALL, Spans(WALL), totals, lambda: (ends, {5: 2}), 0)
    found = []
    for sent in (150, 190, 20):
        ends = {3: Outgoing(sent, 4, 0)}
        found.append(accounts.next((len(found) + 1) * S))
    assert [each.sent for each in found] == [{3: (50, 4, 0)}, {3: (40, 4, 0)}, {3: (20, 4, 0)}]
    assert found[0].queued == {5: 2}
    [whole] = coarsened(found, 200)
    assert isinstance(whole, Account)
    assert (whole.sent, whole.queued, whole.d) == ({3: (110, 4, 0)}, {5: 2}, 3_000_000)


def test_an_account_has_what_travelled_since_the_last_one() -> None:
    traffic = {3: (100, 40)}
    accounts = Accounts(WALL, Spans(WALL), totals, lambda: ({}, {}), 0, traffic=lambda: traffic)
    found = []
    for more in ({3: (100, 40)}, {3: (300, 50)}, {3: (300, 55), 4: (0, 7)}):
        traffic = more
        found.append(accounts.next((len(found) + 1) * S))
    assert [each.travelled for each in found] == [{}, {3: (200, 10)}, {3: (0, 5), 4: (0, 7)}]
    [whole] = coarsened(found, 150)
    assert isinstance(whole, Account)
    assert whole.travelled == {3: (200, 15), 4: (0, 7)}


def test_after_many_spans_only_longer_ones_have_a_line() -> None:
    spans = Spans(WALL)
    for at in range(MANY + 1):
        assert spans.take(span(COMPUTING, at * 10 * MS, at * 10 * MS + MS))
    assert spans.turn() == 1000
    assert not spans.take(span(COMPUTING, 0, MS))
    assert spans.turn() == 2000
    assert spans.take(span(COMPUTING, 0, MS))
