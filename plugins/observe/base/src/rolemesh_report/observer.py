"""The observer `report`: for jobs whose driver does not wait for their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolemesh.api.observer import Observer, RunInfo
from rolemesh.hookspecs import hookimpl

__all__ = ["ReportObserver"]


class ReportObserver(Observer):
    """Writes ``report.html`` into the run's folder when the job has ended."""

    _run: RunInfo | None = None

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Note the run's folder."""
        self._run = run

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        """Write the report, also of a failed or interrupted job. The master writes ``result.json`` later."""
        from rolemesh_report.writing import REPORT_FILE, write_report

        if self._run is not None:
            folder = Path(self._run.run_dir)
            write_report(folder, folder / REPORT_FILE, result)
