"""The API of an engine: it takes a checked job, runs it, and gives a handle to who waits for it."""

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
"""Takes what a person should know, a line at a time. An engine prints nothing itself."""


class RunHandle(ABC):
    """A job that an engine runs, in the folder `run_dir`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @abstractmethod
    def status(self) -> JobStatus | None:
        """The present picture; None if nobody answers now, or the job is over."""

    @abstractmethod
    def stop(self, reason: str) -> None:
        """Ask the job to end; returns when it has been asked. From any thread, also while another
        one waits."""

    @abstractmethod
    def wait(self, interrupted: Callable[[], None] | None = None) -> dict[str, Any] | None:
        """Run the job to its end, and pass what happens to the observers that live here.

        Returns the content of ``result.json``, or None if the job has died without one. At the
        first `KeyboardInterrupt` `interrupted` is called, if it is given, and waiting goes on.
        """

    @abstractmethod
    def result(self) -> dict[str, Any] | None:
        """The content of ``result.json``, or None if the job has not ended."""

    def leave(self) -> None:
        """Return when the job runs; it goes on without this process. Raises `JobFileError` where
        that is impossible.

        Its `result` is there afterwards if it has ended already.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - nothing to release is ordinary
        """Release what belongs to this process. A job that it owns has ended."""


class Engine(Plugin, ABC):
    """Base of engines (entry-point group ``rolemesh.engines``).

    `Options` are what a job file says under ``engine.options``: `job.selection.engine.options` in
    `start`. A field of type `Use` with ``json_schema_extra={"plugins": "transports"}`` names a
    plugin of that kind, which is then in `job.selection.used_by_engine`.

    The fields of `RunOptions` are options of ``rolemesh run`` where the engine is chosen, and
    keywords of `rolemesh.Job.run`. An engine is made with these, as `options`.
    """

    RunOptions: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model: what is chosen for one run of a job."""

    outlives: ClassVar[bool] = False
    """Whether a job can go on when the process that has started it ends."""

    @classmethod
    def options_for(cls, chosen: Mapping[str, str]) -> type[BaseModel]:
        """`RunOptions`, with what depends on other choices: `chosen` are the fields that are known
        already, as text."""
        return cls.RunOptions

    @classmethod
    def check(cls, job: Prepared) -> Sequence[str]:
        """Raise `RolemeshError` for what the engine cannot run of `job`, and return warnings, one
        sentence each.

        ``rolemesh validate`` calls it for the engine of the job file.
        """
        return job.warnings()

    @abstractmethod
    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Start `job` in the folder `run_dir`, which is made, or, if an earlier run left it, set
        aside first.

        Not `detached`, the job ends with this process. Raises `RolemeshError` if nothing has been
        started.
        """
