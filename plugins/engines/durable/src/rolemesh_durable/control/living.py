"""A run with its living processes and its journal, beside its files."""

from __future__ import annotations

from pathlib import Path

from rolemesh.api.observer import JobStatus
from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.runs import Run
from rolemesh_durable.stores import StateError
from rolemesh_runtime.lock import is_held

__all__ = ["LivingRun", "answers"]


class LivingRun(Run):
    """A run whose master may answer."""

    def status(self, timeout_s: float = 2.0) -> JobStatus | None:
        """Return the present status from the master, or None if it does not answer."""
        try:
            with ControlClient(self.path, timeout_s) as client:
                return client.status()
        except MasterGoneError:
            return None

    def alive(self) -> bool:
        """Return whether the job has no result and some of its processes are alive, even if its master does not answer
        just now."""
        return self.result() is None and (is_held(self.path) or self.answers())

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the job has no result and its master answers within `timeout_s`."""
        return self.result() is None and self.status(timeout_s) is not None

    def job_id(self) -> str:
        """Return the job's id in the journal. Raises `StateError` if the run never began."""
        control = self.control()
        found = control.job_id if control is not None else str((self.result() or {}).get("job_id", ""))
        if not found:
            raise StateError(
                "this run has never begun, so it has no journal",
                where=str(self.path),
                remedy="look into its logs, or start it again",
            )
        return found

    def store(self) -> EventLog:
        """Return the journal, from ``engine.options.state`` in the run's ``job.yaml``.

        Raises `ForeignRunError` for a run to which other users have access: a driver might log in to their database
        with data from this user's environment and home, and SQLite would write beside their file.
        """
        self.require_own("its database is not opened")
        url = str(self.job_value("engine", "sqlite", "options", "state"))
        return EventLog.open(url, self.path, self.job_id())


def answers(run_dir: Path, timeout_s: float) -> bool:
    """Return whether the job in a run's folder has no result and its master answers within `timeout_s`."""
    return LivingRun(run_dir).answers(timeout_s)
