"""The engine `durable`: its jobs survive the death of their master, agents and ranks, on any backend.

Until the plan is complete, nothing is started and neither Ray nor torch is imported, so all errors of a job are
reported within a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, create_model

from rolemesh.errors import JobFileError, raise_all
from rolemesh.job.engine import Engine, RunHandle, Say
from rolemesh.job.planning import check_placed
from rolemesh.job.prepared import Prepared
from rolemesh.plugins.discovery import OFFERED, discover, find
from rolemesh.plugins.drivers import load
from rolemesh_durable.backends import Backend
from rolemesh_durable.environments import wrong_environments
from rolemesh_durable.extensions.edges.transports import wrong_transports
from rolemesh_durable.extensions.turns.slots import taking_turns
from rolemesh_durable.journal.event_log import store_named
from rolemesh_durable.options import DurableOptions, options_in
from rolemesh_durable.unused_keys import warnings
from rolemesh_runtime.carried import uncarried

__all__ = ["DurableEngine", "DurableRunOptions"]

DEFAULT_BACKENDS = ("ray", "local")
"""The backend if nobody chooses one: the first of these that is installed."""


class DurableRunOptions(BaseModel, extra="forbid"):
    """Options of a run. Those of the chosen backend are added."""

    backend: str | None = Field(
        default=None, description="Where master and agents run, e.g. 'local'. Default: ray, if it is installed."
    )
    resume: str | None = Field(
        default=None,
        description="Start from the newest intact snapshot of this job or run folder, or from this step-N folder. "
        "'auto': from this job's own run, if it is unfinished.",
        json_schema_extra={"metavar": "JOB|PATH"},
    )
    trust_pickles: bool = Field(
        default=False,
        description="With --resume: also read pickled objects, which can run any code in the snapshot's files. Use it "
        "only if nobody else could write them.",
    )
    rehearsed: bool = Field(default=False, exclude=True, description="A rehearsal decides how far the ranks may run.")


class DurableEngine(Engine):
    """Starts a master on a backend, and follows it."""

    Options: ClassVar[type[BaseModel]] = DurableOptions
    RunOptions: ClassVar[type[BaseModel]] = DurableRunOptions
    outlives: ClassVar[bool] = True

    @classmethod
    def options_for(cls, chosen: Mapping[str, str]) -> type[BaseModel]:
        """Return the engine's options and those of the chosen backend."""
        backend = backend_named(chosen.get("backend"))
        fields: dict[str, Any] = {
            name: (field.annotation, field) for name, field in backend.Options.model_fields.items()
        }
        return create_model("DurableRunOptions", __base__=DurableRunOptions, **fields)

    @classmethod
    def check(cls, job: Prepared) -> Sequence[str]:
        """Raise the errors of the job for this engine: snapshots that are both requested and switched off, impossible
        environments, called roles that take turns, and scalers without an elastic role. Return a warning for each key
        without effect."""
        cls._check(job)
        return warnings(job, None)

    @classmethod
    def _check(cls, job: Prepared) -> None:
        wrong = *_switched_off(job), *wrong_transports(job), *wrong_environments(job.job), *_uncarried(job)
        raise_all([*wrong, *_called_in_turns(job)])
        store_named(options_in(job.selection).state, job.job.where(("engine", "options", "state")))
        if any(kind == "scalers" for kind, _ in job.selection.declared) and not job.elastic:
            what = "there are scalers, and no role may have another number of ranks"
            remedy = "give one a range, as in world_size: {min: 1, max: 4}"
            raise JobFileError(what, where=job.job.where(("plugins", "scalers")), remedy=remedy)

    def start(self, job: Prepared, run_dir: Path, *, detached: bool = False, say: Say) -> RunHandle:
        """Start the job's master, and return when it answers."""
        from rolemesh_durable.driver import Driver, in_background

        self._check(job)
        for text in warnings(job, self.options):
            say(f"warning: {text}")
        asked = self.options
        if asked.trust_pickles and not asked.resume:
            raise JobFileError("--trust-pickles is about the snapshot to resume from", remedy="add --resume")
        backend = backend_named(asked.backend)
        options = backend.Options(**{name: getattr(asked, name) for name in backend.Options.model_fields})
        expected = backend.expected(options)
        if expected is not None:
            check_placed((fitted := job.fitted(expected)).plan(expected), fitted.job)
        if detached and not backend.outlives(options):
            return in_background(job, run_dir, asked, say)
        driver = Driver(job, run_dir, asked, backend, options, owner=not detached, say=say)
        driver.start()
        return driver


def backend_named(name: str | None) -> type[Backend]:
    """Return the class of a backend; for None that of the default one. Raises `PluginError`."""
    records = discover(("backends",))
    if name is None:
        there = [record.name for record in records if record.status in OFFERED]
        name = next((known for known in DEFAULT_BACKENDS if known in there), DEFAULT_BACKENDS[-1])
    found: type[Backend] = load(find("backends", name, records, "--backend"), "--backend")
    return found


def _switched_off(job: Prepared) -> Iterator[JobFileError]:
    """Yield the error for `persist_every` in a job whose snapshots are off."""
    spec = options_in(job.selection).snapshots
    if spec.enabled is False and spec.persist_every is not None:
        yield JobFileError(
            f"snapshots.persist_every is {spec.persist_every}, and snapshots.enabled is false: none is written",
            where=job.job.where(("engine", "options", "snapshots", "enabled")),
            remedy="leave out snapshots.enabled, or snapshots.persist_every",
        )


def _uncarried(job: Prepared) -> Iterator[JobFileError]:
    """Yield the error for each value that cannot travel to other processes."""
    for path, why, remedy in uncarried(job.job.spec.model_dump()):
        yield JobFileError(why, where=job.job.where(path), remedy=remedy)


def _called_in_turns(job: Prepared) -> Iterator[JobFileError]:
    """Yield the error for roles that are called and take turns on a slot. They would answer only in their own turns,
    and their caller may have to end its turn first. The plan on unlimited resources shows such roles."""
    called = {callee for _, callee in job.graph.callers}
    if not called:
        return
    plan = job.plan_with_plenty()
    turns = taking_turns(plan) if plan is not None else {}
    for role in sorted(called & {role for ranks in turns.values() for role, _ in ranks}):
        yield JobFileError(
            f"role {role!r} is called by others, and takes turns on its devices: it would not answer between them",
            where=job.job.where(("placement",)),
            remedy="leave it out of the group whose roles take turns, or have the group share its slots",
        )
