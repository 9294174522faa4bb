"""The history of a restarted rank's calls: it goes to the same ranks, hears the same, and names sessions as before."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rolemesh.api.service import ServiceSpec
from rolemesh_durable.extensions.calls.history import ASKED, BEGUN, ENDED, CallHistory, Session, asked
from rolemesh_durable.extensions.calls.states import OpenCall

KEY, OTHER = b"k" * 16, b"o" * 16
ANY, ONCE = ServiceSpec("any"), ServiceSpec("once", repeatable=False)


class Decided(NamedTuple):
    step: int
    body: bytes


def history() -> CallHistory:
    """Return the history of a life that sent a call to rank 2 in life 5, heard it, and began a session, in step 3."""
    call: OpenCall[str] = OpenCall(KEY, "box", "")
    call.rank, call.sent_to = 2, 5
    known = {
        ASKED: [Decided(3, asked(call))],
        ENDED: [Decided(3, KEY + b"answer")],
        BEGUN: [Decided(3, KEY + b"box/2#5/name")],
    }
    return CallHistory(lambda scope: known[scope])


def where(call: OpenCall[str]) -> tuple[int, int, bool]:
    return call.rank, call.life, call.uncertain


def test_a_history_repeats_outcomes_and_sessions_until_their_steps_are_finished() -> None:
    past = history()
    past.finished(2)
    assert (past.outcome(KEY), past.session(KEY)) == (b"answer", "box/2#5/name")
    assert (past.outcome(OTHER), past.session(OTHER)) == (None, None)
    past.finished(3)
    assert (past.outcome(KEY), past.session(KEY)) == (None, None)


def test_a_call_that_left_prefers_its_rank_and_is_bound_to_its_life_if_it_is_not_repeatable() -> None:
    past = history()
    assert where(past.open(KEY, ANY, None, "box", "")) == (2, -1, False)
    assert where(past.open(KEY, ONCE, None, "box", "")) == (2, 5, True)
    assert where(past.open(OTHER, ONCE, None, "box", "")) == (-1, -1, False)
    session = Session("box", 1, 7)
    assert where(past.open(OTHER, ANY, session, "box", "")) == (1, 7, False)
    assert where(past.open(KEY, ONCE, session, "box", "")) == (1, 7, True)


@pytest.mark.parametrize("name", ["box", "box/1", "box/1#2", "box/x#2/key", ""])
def test_other_texts_are_no_sessions(name: str) -> None:
    assert Session.parse(name) is None
    assert Session.parse(Session("box", 1, 2).named("a/key")) == ("box", 1, 2)
