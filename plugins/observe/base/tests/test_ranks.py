"""Which ranks a run has, and how each one ended, also if it ended before it had a record."""

from __future__ import annotations

from typing import Any

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.ranks import ends_of, processes_of, ranks_of
from rolemesh_recorder.lines import FlowFile, Head

A, B, C = RankRef("a", 0), RankRef("b", 0), RankRef("b", 1)


def told(*events: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, 1, float(seq), kind, data) for seq, (kind, data) in enumerate(events, 1)]


def test_a_recorded_run_has_all_ranks_of_its_flow_and_of_its_resizes() -> None:
    flow = FlowFile("job", (), (), {"a": 1, "b": 1}, {})
    events = told(("resized", {"sizes": {"b": 2}}), ("resized", {"sizes": {"b": 1}}))
    assert ranks_of(flow, events, [A]) == [A, B, C]
    assert ranks_of(None, (), [A]) == [A]
    assert ranks_of(flow, events, []) == []


def test_a_process_that_came_up_is_known_without_a_record() -> None:
    up = {"role": "b", "rank": 1, "generation": 3, "pid": 7, "node": "n"}
    assert processes_of(told(("rank_up", up), ("rank_up", {"role": "b"}))) == [Head("b", 1, 3, 7, "n", 1_000_000)]


def test_a_rank_ends_as_its_last_event_says() -> None:
    a, b, c = ({"role": ref.role, "rank": ref.rank} for ref in (A, B, C))
    events = told(
        ("rank_up", a), ("rank_up", b), ("rank_up", c), ("failure", {"failure": b}), ("rank_up", b),
        ("rank_done", a), ("failure", {"failure": c}), ("failure", {"failure": {"role": "b", "rank": None}}),
    )  # fmt: skip
    assert ends_of(events) == {A: "done", B: "", C: "failed"}
    assert ends_of([*events, *told(("job_ended", {}))]) == {A: "done", B: "stopped", C: "failed"}
