"""When the job file's `until` holds: by the lines of metrics, those of an earlier master as well, or by the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolemesh.api.observer import StepMetrics
from rolemesh.runs.jsonl import metrics_line
from rolemesh_durable.master.until import Until
from rolemesh_durable.protocol.master.events import FinishAsked


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, 0.0, values, {"trainer.train": {"loss": 0.5}}, {})


@pytest.mark.parametrize(
    ("spec", "found", "why"),
    [
        ({"metric": "reward", "at_least": 0.9}, line(3, reward=0.89), ""),
        ({"metric": "reward", "at_least": 0.9}, line(3, reward=0.9), "reward = 0.9 is at least 0.9 at step 3"),
        ({"metric": "reward", "at_least": 0.9}, line(3, loss=1.0), ""),
        ({"metric": "loss", "at_most": 1}, line(3, loss=0.25), "loss = 0.25 is at most 1 at step 3"),
        ({"metric": "loss", "at_most": 1}, line(3, loss=float("nan")), ""),
        (
            {"metric": "trainer.train/loss", "at_most": 0.5},
            line(0),
            "trainer.train/loss = 0.5 is at most 0.5 at step 0",
        ),
        ({"metric": "trainer.train/reward", "at_most": 0.5}, line(0), ""),
        ({}, line(3, reward=0.9), ""),
    ],
)
def test_a_line_of_metrics_finishes_the_job_when_the_condition_holds(spec: Any, found: Any, why: str) -> None:
    until = Until(spec)
    until.look([found])
    assert until.events(1e9) == ([FinishAsked(why)] if why else [])


def test_the_first_reason_stays() -> None:
    until = Until({"metric": "reward", "at_least": 1, "max_s": 10})
    assert until.events(9.9) == []
    until.look([line(0, reward=0.0), line(1, reward=1.0), line(2, reward=2.0)])
    assert until.events(11.0) == until.events(12.0) == [FinishAsked("reward = 1 is at least 1 at step 1")]
    assert Until({"max_s": 10}).events(10.0) == [FinishAsked("10 s have passed")]


def test_the_lines_of_a_master_that_died_before_it_said_so_are_looked_at(tmp_path: Path) -> None:
    lines = [metrics_line(line(step, reward=step / 4))[1] for step in range(6)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    until = Until({"metric": "reward", "at_least": 1})
    until.look_back(tmp_path, 5)
    assert until.events(0.0) == [FinishAsked("reward = 1 is at least 1 at step 4")]
