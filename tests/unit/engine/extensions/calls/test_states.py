"""Both ends of calls: messages, repeated requests, known answers, and the bounded memory."""

from __future__ import annotations

from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.calls.states import OPEN, CalleeState, CallerState, Known, OpenCall

A0, A1 = ("a", 0), ("a", 1)


def caller(*lives: int) -> CallerState[str]:
    state: CallerState[str] = CallerState({"box": len(lives)})
    for rank, life in enumerate(lives):
        state.lives(("box", rank), life)
    return state


def call(number: int, **more: Any) -> OpenCall[str]:
    return OpenCall(b"%d" % number, "box", f"call {number}", 1, **more)


def left(state: CallerState[str]) -> list[tuple[str, int]]:
    return [(call.item, call.rank) for call in state.leaving("box")]


def callee(*, keeps: bool = True, max_bytes: int = 100, concurrency: int = 1) -> CalleeState[str, str]:
    state: CalleeState[str, str] = CalleeState(
        [A0, A1], {"run": concurrency}, keeps=keeps, every=1, max_bytes=max_bytes
    )
    state.met(A0, 0)
    state.met(A1, 0)
    return state


def asks(state: CalleeState[str, str], key: bytes, step: int = 0, generation: int = 0) -> Known[str, str] | None:
    return state.asked(A0, generation, key, step, step, "run", "what")


def runs(state: CalleeState[str, str], nbytes: int = 1) -> bytes:
    known = state.begins()
    assert known is not None
    state.done(known, "answer", nbytes)
    return known.key


def test_calls_go_to_the_ranks_that_have_fewest_and_no_more_than_the_credits() -> None:
    state = caller(0, 0)
    for number in range(2 * OPEN + 1):
        state.ask(call(number))
    gone = left(state)
    assert [rank for _, rank in gone].count(0) == [rank for _, rank in gone].count(1) == OPEN
    state.close(b"1")
    assert left(state) == [(f"call {2 * OPEN}", 1)]


def test_a_caller_has_no_calls_with_ranks_of_an_earlier_layout_and_their_sessions_are_lost() -> None:
    state = caller(0, 0)
    for number in range(2):
        state.ask(call(number))
    state.ask(call(2, rank=1, life=0))
    assert {rank for _, rank in left(state)} == {0, 1}
    assert [lost.item for lost in state.resized("box", 1)] == ["call 2"]
    assert state.up("box") == left(state) == []
    assert not state.ask(call(3, rank=1, life=0))
    assert not state.ask(call(4, rank=0, life=0))
    state.lives(("box", 0), 1)
    assert sorted(left(state)) == [("call 0", 0), ("call 1", 0)]
    assert not caller(0).ask(call(5, rank=3, life=0)), "another process had it, in an earlier layout"


def test_a_callee_waits_for_no_caller_of_an_earlier_layout() -> None:
    state = callee()
    asks(state, b"runs")
    asks(state, b"waits")
    known = state.begins()
    assert known is not None
    state.has_finished(A0, 0, 4)
    state.resized("a", 1)
    assert not state.done(known, "answer", 1), "nobody is there to take it"
    assert state.begins() is None
    assert state.behind(4) == [A0]
    state.has_finished(A1, 0, 4)
    state.has_finished(A0, 1, 4)
    assert (state.finished, state.met(A0, 1)) == (4, [])


def test_calls_of_a_dead_rank_go_to_another_one_and_an_answer_of_either_counts() -> None:
    state = caller(0, 0)
    for number in range(4):
        state.ask(call(number))
    assert [rank for _, rank in left(state)] == [0, 1, 0, 1]
    assert state.died(("box", 0), 0) == []
    assert left(state) == [("call 0", 1), ("call 2", 1)]
    assert state.close(b"0") is not None
    assert state.close(b"0") is None


def test_a_call_in_a_session_waits_for_nobody_else_and_is_lost_with_its_rank() -> None:
    state = caller(0, 3)
    mine = call(1, rank=1, life=3)
    assert state.ask(mine)
    assert left(state) == [("call 1", 1)]
    assert state.lives(("box", 1), 4) == [mine]
    assert not state.open
    assert not state.ask(call(2, rank=1, life=3))


def test_a_call_goes_to_whom_a_former_life_has_asked_unless_that_rank_is_dead() -> None:
    state = caller(0, 0)
    state.ask(call(1, rank=1))
    assert left(state) == [("call 1", 1)]
    state.died(("box", 0), 0)
    state.ask(call(2, rank=0))
    assert left(state) == [("call 2", 1)]


def test_a_known_call_is_answered_from_memory_until_the_commit() -> None:
    state = callee()
    assert asks(state, b"x") is None
    assert asks(state, b"x") is None, "it waits to be run"
    assert runs(state) == b"x"
    assert state.begins() is None
    again = asks(state, b"x")
    assert again is not None
    assert again.answer == "answer"
    state.committed(0)
    assert state.kept_bytes == 0


def test_without_snapshots_answers_go_when_their_caller_has_finished_the_step() -> None:
    state = callee(keeps=False)
    asks(state, b"x")
    runs(state)
    state.has_finished(A0, 0, 0)
    assert state.kept_bytes == 0


def test_an_answer_waits_for_the_address_of_a_new_life() -> None:
    state = callee()
    asks(state, b"x", generation=1)
    known = state.begins()
    assert known is not None
    assert not state.done(known, "answer", 1)
    assert state.met(A0, 1) == [known]


def test_if_answers_take_too_much_memory_only_steps_that_the_next_commit_needs_continue() -> None:
    state = callee(max_bytes=10)
    asks(state, b"a", step=0)
    runs(state, nbytes=10)
    asks(state, b"b", step=1)
    asks(state, b"c", step=0)
    assert runs(state) == b"c"
    assert state.begins() is None
    state.committed(0)
    assert runs(state) == b"b"


def test_a_call_that_its_caller_has_given_up_is_not_run() -> None:
    state = callee()
    asks(state, b"x", step=3)
    state.has_finished(A0, 0, 3)
    assert state.begins() is None


def test_no_more_calls_of_a_method_run_at_once_than_it_says() -> None:
    state = callee(concurrency=2)
    for key in (b"a", b"b", b"c"):
        asks(state, key)
    assert [state.begins() is not None for _ in range(3)] == [True, True, False]


def test_a_call_that_is_not_repeatable_is_lost_with_the_life_that_may_have_run_it() -> None:
    state = caller(0, 0)
    state.ask(call(1, once=True, rank=0))
    state.ask(call(2))
    assert sorted(left(state)) == [("call 1", 0), ("call 2", 1)]
    (lost,) = state.died(RankRef("box", 0), 0)
    assert (lost.item, lost.uncertain) == ("call 1", True)
    assert state.died(RankRef("box", 1), 0) == [], "the other call is repeated"
    state.ask(call(3, once=True))
    state.lives(RankRef("box", 0), 1)
    assert sorted(left(state)) == [("call 2", 0), ("call 3", 0)], "a call that did not leave may go to any rank"


def test_a_call_that_is_not_repeatable_goes_to_the_rank_that_its_key_names_if_it_is_up() -> None:
    first, again = caller(0, 0, 0), caller(0, 0, 0)
    for number in range(8):
        first.ask(call(number, once=True))
    again.ask(call(7, once=True))
    assert ("call 7", dict(left(again))["call 7"]) in left(first)
    assert len({rank for _, rank in left(first)} | {call.rank for call in first.open.values()}) > 1


def test_a_call_that_a_former_life_sent_and_that_is_not_repeatable_asks_no_other_life() -> None:
    again = call(1, once=True, left=True, rank=0, life=0)
    assert caller(0).ask(again)
    assert not caller(1).ask(again)
    assert again.uncertain


def test_only_the_rank_and_life_that_have_a_call_may_answer_it() -> None:
    state = caller(3, 0)
    state.ask(call(1))
    assert left(state) == [("call 1", 0)]
    assert state.answered(b"1", 1, 0) is None
    assert state.answered(b"1", 0, 2) is None
    assert state.answered(b"1", 0, 3) is not None


def test_a_callee_forgets_a_call_that_is_given_up_and_runs_it_again_if_it_is_asked_again() -> None:
    state = callee()
    asks(state, b"runs")
    asks(state, b"waits")
    known = state.begins()
    assert known is not None
    assert state.gives_up(A0, 0, b"waits") is None
    assert state.gives_up(A0, 0, b"runs") is known
    asks(state, b"runs", generation=1)
    assert not state.done(known, "cancelled", 1)
    assert runs(state) == b"runs"
    assert state.begins() is None
    state.met(A0, 1)
    repeated = asks(state, b"runs", generation=1)
    assert repeated is not None
    assert repeated.answer == "answer"


def test_a_callee_keeps_a_call_that_is_given_up_and_must_not_run_again() -> None:
    state: CalleeState[str, str] = CalleeState([A0], {"run": 1}, keeps=True, every=1, max_bytes=9, once=["run"])
    state.met(A0, 0)
    asks(state, b"runs")
    known = state.begins()
    assert known is not None
    assert state.has_finished(A0, 0, 0) == [known]
    state.done(known, "uncertain", 1)
    assert asks(state, b"runs") is known
    assert state.begins() is None


def test_a_late_message_of_a_dead_caller_gives_up_nothing_that_its_successor_asks() -> None:
    state = callee()
    asks(state, b"runs")
    known = state.begins()
    asks(state, b"runs", generation=1)
    assert state.gives_up(A0, 0, b"runs") is None
    assert known is not None
    assert not known.given_up
