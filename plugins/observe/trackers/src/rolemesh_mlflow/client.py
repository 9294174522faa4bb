"""A run of MLflow. Importing this module imports MLflow, which then gives up on a silent server sooner."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rolemesh_mlflow.names import allowed
from rolemesh_tracking import Line, Note, Refused

__all__ = ["Session", "database"]

T = TypeVar("T")
MOST_METRICS = 1000
MOST_PARAMS = 100
"""Maximum numbers of one request."""
VALUE_CHARACTERS = 500
_STATUSES = {"done": "FINISHED", "interrupted": "KILLED"}


class Session:
    """A run. Every method raises `MlflowException` if the server does not answer."""

    def __init__(self, uri: str, experiment: str, artifacts: Path | None) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment = self._chosen(experiment, artifacts)
        self._id = ""

    def begin(
        self, name: str, config: Mapping[str, object], tags: Mapping[str, str], began: float | None = None
    ) -> str:
        """Create a run, and return its id. `began`: its start in seconds since 1970; None for now."""
        start = None if began is None else int(began * 1000)
        self._id = self._client.create_run(self._experiment, start, dict(tags), name).info.run_id
        params = {allowed(key): str(value)[:VALUE_CHARACTERS] for key, value in config.items()}
        for batch in _batches((Param(key, value) for key, value in params.items()), MOST_PARAMS):
            self._client.log_batch(self._id, params=batch)
        return str(self._id)

    def resume(self, known: str) -> bool:
        """Continue a run; False if the server does not know it."""
        try:
            self._client.get_run(known)
            self._client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        self._id = known
        return True

    def log(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Log metrics, and each note as a tag ``event.NUMBER``."""
        metrics = (
            Metric(allowed(name), value, int(line.time * 1000), line.step)
            for line in lines
            for name, value in line.values.items()
        )
        tags = [
            RunTag(f"event.{note.seq:06d}", f"{note.kind} after step {note.step}: {note.text}"[:VALUE_CHARACTERS])
            for note in notes
        ]
        try:
            for batch in _batches(metrics, MOST_METRICS):
                self._client.log_batch(self._id, metrics=batch)
            for some in _batches(tags, MOST_PARAMS):
                self._client.log_batch(self._id, tags=some)
        except MlflowException as error:
            if error.error_code == "INVALID_PARAMETER_VALUE":
                raise Refused(str(error)) from None
            raise

    def end(self, status: str) -> None:
        """End the run."""
        self._client.set_terminated(self._id, _STATUSES.get(status, "FAILED"))

    def _chosen(self, experiment: str, artifacts: Path | None) -> str:
        """Return the id of an experiment. MLflow, too, takes the variable with the name before the one with the id."""
        experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        if not experiment and (identity := os.environ.get("MLFLOW_EXPERIMENT_ID")):
            return str(self._client.get_experiment(identity).experiment_id)
        experiment = experiment or "rolemesh"
        if (found := self._client.get_experiment_by_name(experiment)) is not None:
            return str(found.experiment_id)
        location = artifacts.absolute().as_uri() if artifacts else None
        return str(self._client.create_experiment(experiment, artifact_location=location))


def database(path: Path) -> str:
    """Return the URI of a database file, and create it if there is none. Raises `MlflowException`.

    Creating the tables takes seconds. A file of another name has them first, so a killed process leaves none with some
    of the tables.
    """
    if not path.exists():
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        MlflowClient(tracking_uri=f"sqlite:///{new}").get_experiment_by_name("Default")
        new.replace(path)
    return f"sqlite:///{path}"


def _batches(found: Iterable[T], most: int) -> Iterator[list[T]]:
    each = iter(found)
    while batch := list(islice(each, most)):
        yield batch
