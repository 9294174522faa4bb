"""The verdict of a hang follows calls: to who runs one, around a circle of them, and to those who make them."""

from __future__ import annotations

from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import ServiceSpec
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_durable.extensions.calls.phases import CALLING, FOLLOWING, SERVING, called_at, position_of
from rolemesh_durable.extensions.hangs.culprit import HangVerdict, culprit
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import COMPUTING

RUN = {"run": ServiceSpec("run")}
CALLS = LogicalGraph(
    "calls",
    (
        OpCall(0, "agent", "act", "agent.act", None, calls=("box",)),
        OpCall(1, "judge", "score", "judge.score", None, calls=("agent",)),
    ),
    (),
    {"box": RUN, "agent": RUN},
)


def at(role: str, rank: int, phase: int, **more: Any) -> tuple[RankRef, RankReport]:
    given = {"state": "ready", "step": 4, "op": -1, "finished": 3, "phase": phase, "since_s": 9.0} | more
    return RankRef(role, rank), RankReport(role, rank, 0, **given)


def blame(*reports: tuple[RankRef, RankReport]) -> HangVerdict:
    return culprit(CALLS, dict(reports), {"agent": 1, "judge": 1, "box": 2})


def calls(role: str, pair: int, rank: int) -> tuple[RankRef, RankReport]:
    return at(role, 0, CALLING, op=pair, edge=position_of(pair, rank))


def test_a_position_of_a_call_is_read_as_it_was_written() -> None:
    assert called_at(position_of(0, 1), CALLS) == ("box", 1)
    assert called_at(position_of(1, -1), CALLS) == ("agent", -1)
    assert called_at(-1, CALLS) is None
    assert called_at(0, CALLS) is None


def test_a_rank_that_runs_a_call_is_at_work_and_named_through_all_ranks_that_wait_for_it() -> None:
    verdict = blame(calls("judge", 1, 0), calls("agent", 0, 1), at("box", 0, FOLLOWING, edge=-1), at("box", 1, SERVING))
    assert verdict[:2] == ("box", 1)
    assert verdict.computing
    assert verdict.text == (
        "box/1 has been in a call of another role for 9 s; agent/0 waits for box/1 to answer a call; "
        "judge/0 waits for agent/0 to answer a call; box/0 waits for agent/0 to finish the step in which they call it"
    )


def test_a_rank_that_only_answers_calls_waits_for_its_callers() -> None:
    verdict = blame(at("agent", 0, COMPUTING, op=0), at("box", 0, FOLLOWING), at("box", 1, FOLLOWING))
    assert verdict[:3] == ("agent", 0, "agent.act")


def test_a_circle_of_calls_is_named_as_one() -> None:
    graph = LogicalGraph(
        "circle",
        (
            OpCall(0, "one", "act", "one.act", None, calls=("two",)),
            OpCall(1, "two", "act", "two.act", None, calls=("one",)),
        ),
        (),
        {"one": RUN, "two": RUN},
    )
    verdict = culprit(graph, dict([calls("one", 0, 0), calls("two", 1, 0)]), {"one": 1, "two": 1})
    assert "they wait for each other in a circle" in verdict.text
