"""The axes of metrics, and the marks on them: the judge is computed from the lines and events of the run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rolemesh_facts import RunFacts
from rolemesh_view.axis import apart, axes_of, marks_of, places_of

BEGAN = 1000.0
TIMES = (1002.0, 1003.0, 1007.0, 1008.0)
REST = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
FAILED = {"role": "work", "rank": 1, "message": "killed", "cause": "exit", "silent_s": 0.0}


@pytest.fixture
def facts(tmp_path: Path) -> RunFacts:
    lines = [
        {"step": at, "steps": 1, "time": time, "loss": 1.0 / (at + 1), "trained_tokens": 10.0 * (at + 1), **REST}
        for at, time in enumerate(TIMES)
    ]
    events = [
        {"seq": 0, "epoch": 1, "time": BEGAN, "kind": "job_started", "data": {}},
        {"seq": 1, "epoch": 1, "time": 1003.5, "kind": "failure", "data": {"failure": FAILED}},
        {"seq": 2, "epoch": 1, "time": 1009.0, "kind": "resized", "data": {"number": 1}},
    ]
    for name, found in (("metrics", lines), ("events", events)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in found))
    return RunFacts(tmp_path)


def test_steps_lie_at_their_time_or_at_the_tokens_that_were_used_until_then(facts: RunFacts) -> None:
    assert axes_of(facts) == ["step", "time", "tokens"]
    steps, _ = facts.points("loss")
    assert places_of(facts, steps, "step") == [0, 1, 2, 3]
    assert places_of(facts, steps, "time") == [time - BEGAN for time in TIMES]
    assert places_of(facts, steps, "tokens") == [10.0, 30.0, 60.0, 100.0]


def test_no_value_hides_another_one_at_the_same_place() -> None:
    found = apart([0.0, 7.0, 7.0, 7.0, 9.0, 0.0])
    assert found == pytest.approx([0, 7, 7, 7, 9, 0])
    assert len(set(found)) == 6
    assert found[1:5] == sorted(found[1:5])
    assert apart([3, 4]) == [3, 4]


def test_a_failure_is_marked_at_the_step_that_it_interrupted_and_at_its_time(facts: RunFacts) -> None:
    assert [place for place, _ in marks_of(facts, "step")] == [2, 3]
    assert [place for place, _ in marks_of(facts, "time")] == [3.5, 9.0]
    assert [place for place, _ in marks_of(facts, "tokens")] == [60.0, 100.0]


def test_a_run_without_metrics_has_no_axis_of_tokens_and_nothing_breaks(tmp_path: Path) -> None:
    facts = RunFacts(tmp_path)
    assert axes_of(facts) == ["step", "time"]
    assert marks_of(facts, "time") == []
    assert places_of(facts, [3, 4], "time") == [3, 4]
