"""The observer: metrics as CSV, for spreadsheets and everything else that reads it."""

import csv
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rolemesh import Observer, RunInfo, StepMetrics, hookimpl

__all__ = ["{{ cookiecutter.__class }}"]

HEADER = "step,metric,value\n"


class {{ cookiecutter.__class }}(Observer):
    """Writes a line ``step,metric,value`` per metric and step into the run's folder."""

    class Options(BaseModel, extra="forbid"):
        """Options in the job file."""

        file: str = Field(default="metrics.csv", pattern=r"^[^/]+$", description="A name in the run's folder.")
        metrics: list[str] = Field(default_factory=list, description="Metrics to write; by default all of them.")

    side = "master"
    options: Options

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.path: Path | None = None
        self.last = -1

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Begin the file, or go on with that of a master that died: without its torn line, after its last step."""
        self.path = Path(run.run_dir, self.options.file)
        old = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        whole = [line for line in old if line.endswith("\n")] or [HEADER]
        self.path.write_text("".join(whole), encoding="utf-8")
        self.last = max((int(line.split(",")[0]) for line in whole[1:]), default=-1)

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        """Append the lines of steps that are not there yet."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for line in metrics:
                if line.step > self.last:
                    chosen = self.options.metrics or line.values
                    writer.writerows((line.step, name, line.values[name]) for name in chosen if name in line.values)
                    self.last = line.step
