"""The observer `mlflow`: a run in an experiment of MLflow, with the job file as parameters and events as tags."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from rolemesh.api.observer import RunInfo
from rolemesh.runs.run import EVENTS_FILE
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions

if TYPE_CHECKING:
    from rolemesh_mlflow.client import Session

__all__ = ["MlflowObserver", "MlflowOptions"]


class MlflowOptions(TrackerOptions):
    """Options of the observer `mlflow`."""

    tracking_uri: str = Field(
        default="",
        description="Server or database; default: `MLFLOW_TRACKING_URI`, or the file `mlflow.db` in the run's folder.",
    )
    experiment: str = Field(
        default="",
        max_length=500,
        description="Experiment; default: `MLFLOW_EXPERIMENT_NAME` or `MLFLOW_EXPERIMENT_ID`, or `rolemesh`.",
    )
    tags: dict[str, str] = Field(default_factory=dict, description="Tags of the run.")


class MlflowObserver(Tracker):
    """Logs each metric with its step and time. A restarted master continues the run."""

    Options = MlflowOptions
    service = "mlflow"
    client = "mlflow"
    _session: Session | None = None

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Begin or continue the run. Raises `MlflowException` if the server does not answer."""
        from rolemesh_mlflow.client import Session, database

        folder = Path(run.run_dir)
        uri = self.options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or database(folder / "mlflow.db")
        artifacts = folder / "mlflow-artifacts" if uri.startswith("sqlite:") else None
        self._session = Session(uri, self.options.experiment, artifacts)
        for each in (known.run, os.environ.get("MLFLOW_RUN_ID")):
            if each and self._session.resume(each):
                return each, -1
        return self._session.begin(self.name(run), self.config(run), self.options.tags, _began(folder)), -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Log. Raises `MlflowException` if the server does not answer, and `Refused` if it refuses the data."""
        if self._session is not None:
            self._session.log(lines, notes)

    def close(self, status: str) -> None:
        """End the run."""
        if self._session is not None:
            self._session.end(status)
            self._session = None


def _began(folder: Path) -> float | None:
    """Return when the job began, in seconds since 1970; None if its journal does not say so yet."""
    try:
        with (folder / EVENTS_FILE).open("rb") as lines:
            return float(json.loads(lines.readline())["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
