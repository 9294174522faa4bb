"""The observer `prometheus`: an HTTP server with the newest metrics of the job, for a Prometheus that scrapes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import Field

from rolemesh.api.observer import JobStatus, RunInfo
from rolemesh.hookspecs import hookimpl
from rolemesh.runs.run import write_json
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions, newest

if TYPE_CHECKING:
    from rolemesh_prometheus.server import Server

__all__ = ["PrometheusObserver", "PrometheusOptions"]

TARGETS_FILE = "prometheus.json"
"""A file in the run's folder, as Prometheus's ``file_sd_configs`` reads it."""


class PrometheusOptions(TrackerOptions):
    """Options of the observer `prometheus`."""

    host: str = Field(
        default="127.0.0.1", description="Address to listen on. Everybody who reaches it may read the metrics."
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="Port; default: a free one, which `prometheus.json` names."
    )


class PrometheusObserver(Tracker):
    """Serves the newest values at ``/metrics`` and ``/metrics/NAME`` while the master runs."""

    Options = PrometheusOptions
    service = "prometheus"
    client = "prometheus_client"
    _server: Server | None = None
    _targets: Path

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Listen, and show what the master before this one has shown. Raises OSError if the port is taken."""
        from rolemesh_prometheus.server import Server

        self._server = Server(self.options.host, self.options.port, self.name(run), run.roles)
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        address, self._targets = f"{host}:{self._server.port}", Path(run.run_dir, TARGETS_FILE)
        labels = {"__metrics_path__": f"/metrics/{quote(self.name(run))}"}  # another job may have this port one day
        write_json(self._targets, [{"targets": [address], "labels": labels}])
        if (line := newest(Path(run.run_dir), known.step, self.options.metrics)) is not None:
            self._server.show([line], [])
        return f"http://{address}/metrics", -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Show the newest values, and count the events."""
        if self._server is not None:
            self._server.show(lines, [note.kind for note in notes])

    @hookimpl
    def status(self, status: JobStatus) -> str:
        """Show the state of the job and the number of its ranks."""
        problem = super().status(status)
        if self._server is not None:
            self._server.state(status)
        return problem

    def close(self, status: str) -> None:
        """Stop listening, and leave no target behind."""
        if self._server is not None:
            write_json(self._targets, [])
            self._server.close()
            self._server = None
