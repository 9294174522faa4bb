"""The drawn metrics and pictures. Importing the plugin imports no heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from pydantic import ValidationError

from rolemesh.api.observer import RunInfo, StepMetrics
from rolemesh.runs.jsonl import metrics_line
from rolemesh_durable.journal.line_file import LineFile
from rolemesh_plot import PlotObserver, PlotOptions
from rolemesh_plot.figure import centred_average, whole


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step=step, steps=1, time=0.0, values=values, operators={}, roles={})


def run_info(folder: Path) -> RunInfo:
    return RunInfo(name="grpo", run_dir=str(folder), steps=4, roles={}, operators=())


def test_importing_the_plugin_imports_no_matplotlib() -> None:
    code = (
        "import sys, rolemesh_plot as p; p.PlotObserver(p.PlotOptions())\n"
        "print([m for m in ('matplotlib', 'torch', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_chosen_metric_that_was_reported_becomes_a_picture(tmp_path: Path) -> None:
    observer = PlotObserver(PlotOptions(metrics=["reward", "eval/loss", "never"]))
    observer.job_started(run_info(tmp_path))
    observer.steps_finished((line(0, reward=0.2, other=1.0), line(1, reward=float("nan"))))
    observer.steps_finished((line(2, reward=0.8, **{"eval/loss": 3.0}),))
    observer.job_ended({"status": "done"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["eval_loss.png", "reward.png"]
    assert observer.series["reward"] == {0: (0.2, 1), 2: (0.8, 1)}
    height, width, _ = imread(tmp_path / "reward.png").shape
    assert (width, height) == (960, 540)


def test_the_picture_shows_the_values(tmp_path: Path) -> None:
    pictures = []
    for values in ([0.0, 1.0], [1.0, 0.0]):
        observer = PlotObserver(PlotOptions())
        observer.job_started(run_info(tmp_path))
        observer.steps_finished(tuple(line(step, reward=value) for step, value in enumerate(values)))
        observer.job_ended({})
        pictures.append(imread(tmp_path / "reward.png"))
    assert not np.array_equal(*pictures)


def test_a_restarted_observer_draws_what_the_first_one_saw(tmp_path: Path) -> None:
    LineFile(tmp_path / "metrics.jsonl", "step", 0).append(
        [metrics_line(line(0, reward=0.1)), metrics_line(line(1, reward=0.2))]
    )
    observer = PlotObserver(PlotOptions())
    observer.job_started(run_info(tmp_path))
    observer.steps_finished((line(2, reward=0.3),))
    assert observer.series["reward"] == {0: (0.1, 1), 1: (0.2, 1), 2: (0.3, 1)}


def test_a_job_that_reported_nothing_leaves_no_picture(tmp_path: Path) -> None:
    observer = PlotObserver(PlotOptions())
    observer.job_ended({"status": "failed"})
    observer.job_started(run_info(tmp_path))
    observer.job_ended({"status": "failed"})
    assert list(tmp_path.iterdir()) == []


def test_a_mean_is_drawn_only_where_all_of_its_steps_are() -> None:
    assert whole(np.ones(9), 3).tolist() == [False, *[True] * 7, False]
    assert whole(np.array([4.0, 1.0, 1.0, 4.0]), 5).tolist() == [False, True, True, False]


def test_the_average_of_a_straight_line_is_that_line() -> None:
    values = np.arange(9.0)
    for window in (1, 3, 4, 100):
        np.testing.assert_allclose(centred_average(values, window), values)


def test_the_average_takes_as_many_values_before_as_after() -> None:
    np.testing.assert_allclose(centred_average(np.array([0.0, 3.0, 0.0, 9.0, 0.0]), 3), [0, 1, 4, 3, 0])


def test_a_line_of_several_steps_counts_with_each_of_them() -> None:
    values, lengths = np.array([1.0, 2.0, 6.0, 3.0]), np.array([1.0, 3.0, 5.0, 3.0])
    for window in (3, 5, 9):
        of_steps = centred_average(np.repeat(values, lengths.astype(int)), window)
        np.testing.assert_allclose(centred_average(values, window, lengths), of_steps[[0, 2, 6, 10]])


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError, match="metric"):
        PlotOptions(metric=["reward"])
