"""The API of a command: a verb of the command line, or options of ``rolemesh run``, from any
distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import Plugin


class Command(Plugin):
    """Base of commands (entry-point group ``rolemesh.commands``).

    A command named ``stop`` is the verb ``rolemesh stop``, one named ``plugins.check`` is
    ``rolemesh plugins check``, and one named ``run.chaos``, a `RunOption`, adds its options to
    ``rolemesh run``; ``plan.traffic``, a `PlanOption`, to ``rolemesh plan``.
    """

    help: ClassVar[str] = ""
    """One line for the list of verbs, which reads it from the source: write the text itself."""
    group: ClassVar[str] = ""
    """The part of the list of verbs, read in the same way, e.g. ``Look at jobs``; "": the rest."""

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb for typer: a function, or a ``typer.Typer`` with verbs of its own."""
        raise NotImplementedError


class RunOption(Command):
    """Options of ``rolemesh run``: the fields of `Options`. It runs the job if `wanted`."""

    def admission(self, job: Path) -> Any:
        """Return a `rolemesh.plugins.admission.Admission` that vets each plugin of the job file
        `job` before it is imported, or None."""

    def wanted(self) -> bool:
        """True if the user gave one of its options."""
        return bool(self.options != type(self.options)())

    def run(self, run: Any) -> int:
        """Run the job, a `rolemesh.job.run.JobRun`, and return the exit code."""
        raise NotImplementedError

    def ended(self, run: Any) -> None:
        """Look at the run, a `rolemesh.job.run.JobRun`, when the command, or `rolemesh.Job.run`, is
        about to end. The job may have failed, or go on alone."""


class PlanOption(Command):
    """Options of ``rolemesh plan``: the fields of `Options`. The command adds to the output."""

    def overrides(self, job: Path, given: Sequence[str]) -> Sequence[str]:
        """Return further overrides of the job file `job`, besides those `given`; they apply before
        the job is planned."""
        return ()

    def tell(self, job: Any, cluster: ClusterView, plan: Any) -> tuple[Mapping[str, Any], str]:
        """Return additions to the plan of a `rolemesh.job.prepared.Prepared`: to its JSON, and as
        text ("" for none)."""
        raise NotImplementedError
