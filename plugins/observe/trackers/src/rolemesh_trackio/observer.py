"""The observer `trackio`: a run in a project of Trackio, with the job file as configuration and events as alerts."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from rolemesh.api.observer import RunInfo
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions
from rolemesh_trackio.orders import Begin, End, Log
from rolemesh_trackio.process import Child

__all__ = ["TrackioObserver", "TrackioOptions"]

END_S = 40.0
"""Maximum seconds for the last sending. The engine gives an observer a minute."""


class TrackioOptions(TrackerOptions):
    """Options of the observer `trackio`."""

    project: str = Field(default="rolemesh", pattern=r"^[\w.-]+$", description="Project.")
    group: str = Field(default="", description="Group of the run.")
    folder: str = Field(
        default="",
        description="Trackio's folder on the master's machine; default: `TRACKIO_DIR`, or in the run's folder.",
    )
    space: str = Field(
        default="",
        pattern=r"^([\w.-]+/)?[\w.-]*$",
        description="Space of Hugging Face to send to; default: `TRACKIO_SPACE_ID`.",
    )
    server: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="URL of a server of one's own; default: `TRACKIO_SERVER_URL`.",
    )
    timeout_s: float = Field(default=30.0, gt=0, le=60, description="Seconds until Trackio counts as away.")


class TrackioObserver(Tracker):
    """Logs each step in a process of its own. A restarted master continues the run."""

    Options = TrackioOptions
    service = "trackio"
    client = "trackio"
    _child: Child | None = None

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Begin or continue the run. Raises OSError if Trackio does not answer."""
        name = known.run or f"{self.name(run)}-{secrets.token_hex(2)}"
        options = self.options
        self._begin = Begin(options.project, name, options.group, self.config(run), options.space, options.server)
        self._folder = Path(run.run_dir)
        self._start()
        return name, -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Log. Raises OSError if Trackio does not answer; the next sending starts it again."""
        child = self._child or self._start()
        values = [(line.step, {n: None if math.isnan(v) else v for n, v in line.values.items()}) for line in lines]
        try:
            child.ask(
                Log(values, [(max(0, note.step), note.kind, note.text) for note in notes]), self.options.timeout_s
            )
        except OSError:
            self._stop(0.0)
            raise

    def close(self, status: str) -> None:
        """Send what waits, and end the process."""
        if self._child is not None:
            try:
                self._child.ask(End(status), END_S)
            finally:
                self._stop(5.0)

    def _start(self) -> Child:
        told = self.options.folder or os.environ.get("TRACKIO_DIR")
        folder = Path(os.path.expanduser(told)) if told else self._folder / "trackio"
        child = Child(self._folder / "trackers" / "trackio.log", folder, bool(self.options.server))
        try:
            child.ask(self._begin, self.options.timeout_s)
        except OSError:
            child.close(0.0)
            raise
        self._child = child
        return child

    def _stop(self, limit_s: float) -> None:
        if self._child is not None:
            self._child.close(limit_s)
            self._child = None
