"""The `plot` observer: records the chosen metrics and draws each when the job ends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from rolemesh.api.observer import Missed, Observer, RunInfo, StepMetrics
from rolemesh.hookspecs import hookimpl
from rolemesh.kinds.offered import need
from rolemesh.runs.jsonl import read_metrics
from rolemesh.runs.run import METRICS_FILE

__all__ = ["PlotObserver", "PlotOptions"]


class PlotOptions(BaseModel, extra="forbid"):
    """Options of the `plot` observer."""

    metrics: list[str] = Field(default_factory=lambda: ["reward"], description="metrics to draw, one picture each")
    window: int | None = Field(
        None, gt=0, description="steps of the average around each step; by default a sixth of the job, at least 3"
    )


class PlotObserver(Observer):
    """Writes ``<metric>.png`` into the run's folder: the metric at each step and its centred average.

    A metric that was never reported has no plot. A restarted master reads the earlier values from ``metrics.jsonl``.
    """

    Options = PlotOptions

    def __init__(self, options: PlotOptions) -> None:
        super().__init__(options)
        need("observers", "plot", "matplotlib")
        self.run: RunInfo | None = None
        self.series: dict[str, dict[int, tuple[float, int]]] = {}
        """Name → last step of a line → value, and the number of steps of the line."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Forget the values."""
        self.run = run
        self.series = {name: {} for name in self.options.metrics}
        for line in read_metrics(Path(run.run_dir, METRICS_FILE)):
            self._take(line)

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        """Record the values of the chosen metrics."""
        for line in metrics:
            self._take(line)

    def _take(self, line: StepMetrics) -> None:
        for name, points in self.series.items():
            value = line.values.get(name)
            if value is not None and math.isfinite(value):
                points[line.step] = value, max(1, line.steps)

    @hookimpl
    def missed(self, missed: Missed) -> None:
        """Read the missed values from ``metrics.jsonl``."""
        if self.run is not None and missed.lines:
            for line in read_metrics(Path(self.run.run_dir, METRICS_FILE), missed.first_step - 1):
                self._take(line)

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        """Draw the plots, also of a failed or interrupted job."""
        if self.run is None:
            return
        from rolemesh_plot.figure import draw

        for name, points in self.series.items():
            if points:
                draw(
                    Path(self.run.run_dir, f"{name.replace('/', '_')}.png"),
                    title=f"{self.run.name}: {name}",
                    label=name,
                    points=[(step, *point) for step, point in sorted(points.items())],
                    window=self.options.window or max(3, sum(steps for _, steps in points.values()) // 6),
                )
