"""The observer `tensorboard`: an event file in the run's folder with scalars, and events as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from rolemesh.api.observer import RunInfo
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions

__all__ = ["TensorBoardObserver", "TensorBoardOptions"]


class TensorBoardOptions(TrackerOptions):
    """Options of the observer `tensorboard`."""

    folder: str = Field(default="tensorboard", pattern=r"^[\w-]+$", description="A folder in the run's folder.")


class TensorBoardObserver(Tracker):
    """Writes the metrics of each step. ``tensorboard --logdir runs`` shows all runs.

    Each master writes a file of its own. It begins with a mark that makes TensorBoard drop what an earlier file has of
    the steps that follow, so no step appears twice.
    """

    Options = TensorBoardOptions
    service = "tensorboard"
    client = "tensorboard"

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Begin a file, after those of earlier masters. Raises OSError."""
        from rolemesh_tensorboard.event_files import begin, described

        folder = Path(run.run_dir, self.options.folder)
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        self._path = folder / f"events.out.tfevents.{number:06d}.rolemesh"
        begin(self._path, known.step + 1)
        if not known.run:
            described(self._path, self.name(run), self.config(run))
        return run.name, -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Append. Raises OSError."""
        from rolemesh_tensorboard.event_files import append, scalars, text

        append(
            self._path,
            [
                *(scalars(line.time, line.step, line.values) for line in lines),
                *(text(note.time, max(0, note.step), "events", f"**{note.kind}** {note.text}") for note in notes),
            ],
        )

    def close(self, status: str) -> None:
        """Nothing is open between two sendings."""
