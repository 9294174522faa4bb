"""The observer `wandb`: a run at Weights & Biases with metrics, the job file and a table of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr

from rolemesh.api.observer import RunInfo
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions, told

if TYPE_CHECKING:
    from rolemesh_wandb.client import Session

__all__ = ["WandbObserver", "WandbOptions"]


class WandbOptions(TrackerOptions):
    """Options of the observer `wandb`."""

    project: str = Field(default="", max_length=128, description="Project; default: `WANDB_PROJECT`, or `rolemesh`.")
    entity: str = Field(default="", description="User or team; default: `WANDB_ENTITY`, or that of the key.")
    group: str = Field(default="", description="Group of the run; default: `WANDB_RUN_GROUP`.")
    tags: list[str] = Field(default_factory=list, description="Tags of the run; default: `WANDB_TAGS`.")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="offline: writes into the run's folder, for `wandb sync`; default: `WANDB_MODE`, or online.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key; default: `WANDB_API_KEY`, or that of `wandb login` on the master's machine."
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="Seconds until the service counts as away; default: `WANDB_INIT_TIMEOUT`, or 30.",
    )


class WandbObserver(Tracker):
    """Logs each step under its own number. A restarted master resumes the run. The client's own variables hold
    (``WANDB_…``), unless an option says otherwise.

    Once the run has begun, the client of Weights & Biases keeps what the service does not take, and sends it later.
    """

    Options = WandbOptions
    service = "wandb"
    client = "wandb"
    _session: Session | None = None

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Begin or resume the run. Raises `wandb.Error` if the service does not answer."""
        from rolemesh_wandb.client import Session

        counts = Counter(each.kind for each in told(Path(run.run_dir), known.event))
        self._session = Session(self.options, run.run_dir, known.run, run.name, self.config(run), counts)
        return self._session.identity, self._session.newest

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Log the lines, and count the notes by kind at their steps."""
        if self._session is not None:
            self._session.log(lines, notes)

    def close(self, status: str) -> None:
        """Finish the run, with an exit code that is not 0 if the job failed."""
        if self._session is not None:
            self._session.finish(status)
            self._session = None
