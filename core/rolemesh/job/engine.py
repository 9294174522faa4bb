"""The API of an engine: it takes a checked job, runs it, and returns a handle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import BaseModel

from rolemesh.api.observer import JobStatus
from rolemesh.api.plugin import NoOptions, Plugin

if TYPE_CHECKING:
    from rolemesh.job.prepared import Prepared


Say: TypeAlias = Callable[[str], None]
"""Function that takes a line for the user. An engine prints nothing itself."""


class RunHandle(ABC):
    """A job that an engine runs in the folder `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @abstractmethod
    def status(self) -> JobStatus | None:
        """Return the present status; None if the job does not answer or has ended."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """Request the end of the job, and return when the request is sent. It may be called from
        any thread, also during `wait`."""

    @abstractmethod
    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Run the job to its end, and pass events to the observers in this process.

        Returns the content of ``result.json``, or None if the job died without one. `interrupted`,
        if given, is called at the first `KeyboardInterrupt`; then waiting continues.
        """

    @abstractmethod
    def result(self) -> dict[str, Any] | None:
        """The content of ``result.json``, or None if the job has not ended."""

    def leave(self) -> None:
        """Return when the job runs; it continues without this process. Raises `JobFileError` if the
        engine cannot do that.

        If the job has already ended, `result` returns its result.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - nothing to release is ordinary
        """Release the resources of this process. A job that this process owns must have ended."""


class Engine(Plugin, ABC):
    """Base class of engines (entry-point group ``rolemesh.engines``).

    `Options` are the keys under ``engine.options`` in a job file; `start` finds them as
    `job.selection.engine.options`. A field of type `Use` with ``json_schema_extra={"plugins":
    "transports"}`` names a plugin of that kind, which is then in `job.selection.used_by_engine`.

    The fields of `RunOptions` become options of ``rolemesh run`` when the engine is chosen, and
    keywords of `rolemesh.Job.run`. The constructor gets them as `options`.
    """

    RunOptions: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model with the settings of one run."""

    outlives: ClassVar[bool] = False
    """True if a job can continue after the process that started it ends."""

    @classmethod
    def options_for(cls, chosen: Mapping[str, str]) -> type[BaseModel]:
        """Return `RunOptions`, adapted to other options: `chosen` are the fields known so far, as
        text."""
        return cls.RunOptions

    @classmethod
    def check(cls, job: Prepared) -> Sequence[str]:
        """Raise `RolemeshError` if the engine cannot run `job`, and return warnings, one sentence
        each.

        ``rolemesh validate`` calls it for the engine of the job file.
        """
        return job.warnings()

    @abstractmethod
    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Start `job` in the folder `run_dir`. The folder is created; the output of an earlier run
        is set aside first.

        Unless `detached`, the job ends with this process. Raises `RolemeshError` if nothing was
        started.
        """
