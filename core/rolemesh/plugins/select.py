"""From the names in a job file to imported classes with checked options. Only what a job selects is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from rolemesh.api.import_ref import import_paths
from rolemesh.errors import JobFileError, OptionsError, PluginError, RolemeshError, raise_all
from rolemesh.kinds import job_keys
from rolemesh.plugins.discovery import PluginRecord, discover, find
from rolemesh.plugins.drivers import load
from rolemesh.plugins.lock import Lock
from rolemesh.spec.job_file import JobFile
from rolemesh.spec.model import Use
from rolemesh.spec.places import Path
from rolemesh.spec.world_size import WorldSize

__all__ = ["Selected", "Selection", "select", "validate_options"]


@dataclass(frozen=True)
class Selected:
    """A plugin that the job uses: where it came from, its class, its options, and the place that names it."""

    record: PluginRecord
    cls: type[Any]
    options: BaseModel
    where: str


@dataclass(frozen=True)
class Selection:
    """Everything that a job uses. Lists are in the job file's order."""

    roles: Mapping[str, Selected]
    placement: tuple[Selected, ...]
    failover: tuple[Selected, ...]
    diagnosers: tuple[Selected, ...]
    observers: tuple[Selected, ...]
    transports: Mapping[str, Selected]
    """By where an edge runs: ``local`` or ``remote``."""

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Each plugin once, in the order of first use."""
        decides = [*self.placement, *self.failover, *self.diagnosers]
        used = [*self.roles.values(), *decides, *self.transports.values(), *self.observers]
        return tuple(dict.fromkeys(selected.record for selected in used))

    def versions(self) -> dict[str, dict[str, str]]:
        """The plugins for ``result.json``: name → kind, distribution, version."""
        return {
            record.name: {"kind": record.kind, "distribution": record.distribution, "version": record.version}
            for record in self.records
        }


def select(job: JobFile, environ: Mapping[str, str] | None = None, lock: Lock | None = None) -> Selection:
    """Resolve every plugin that a job file names, check its options, and run `Workload.check`.

    With `lock`, no plugin is imported that it does not name.
    Raises `PluginError`, `OptionsError`, or `Problems` with all of them, each with its place in the job file.
    """
    import_paths(job.base)
    chooser = _Chooser(job, discover(environ=environ), lock)
    spec = job.spec
    roles = {
        name: chooser.choose("workloads", role.use, role.options, ("roles", name)) for name, role in spec.roles.items()
    }
    lists = {
        key: [chooser.choose(kind, use.use, use.options, (key, i)) for i, use in enumerate(chooser.uses(key, kind))]
        for key, kind in job_keys().items()
    }
    transports = {
        side: chooser.choose("transports", getattr(spec.edges, side), {}, ("edges", side))
        for side in ("local", "remote")
        if side in spec.edges.model_fields_set or chooser.installed("transports", getattr(spec.edges, side))
    }
    for name, selected in roles.items():
        if selected is not None:
            chooser.check_workload(name, selected, spec.roles[name].world_size)
    raise_all(chooser.errors)
    return Selection(
        roles={name: selected for name, selected in roles.items() if selected},
        transports={side: selected for side, selected in transports.items() if selected},
        **{key: tuple(filter(None, chosen)) for key, chosen in lists.items()},
    )


class _Chooser:
    """Chooses plugins one by one and keeps what went wrong, so that one run shows all of it."""

    def __init__(self, job: JobFile, records: Sequence[PluginRecord], lock: Lock | None) -> None:
        self.job = job
        self.records = records
        self.lock = lock
        self.errors: list[RolemeshError] = []
        self._failed: set[tuple[str, str]] = set()

    def uses(self, key: str, kind: str) -> list[Use]:
        """What stands under `key`; of a default, what is installed."""
        written: list[Use] = getattr(self.job.spec, key)
        if key in self.job.spec.model_fields_set:
            return written
        return [use for use in written if self.installed(kind, use.use)]

    def installed(self, kind: str, name: str) -> bool:
        """Whether there is such a plugin. Not every engine needs what is a default."""
        return any((each.kind, each.name) == (kind, name) and each.status != "disabled" for each in self.records)

    def choose(self, kind: str, reference: str, options: dict[str, Any], path: Path) -> Selected | None:
        """None if there was an error, which is in `errors`; the same plugin is complained about once."""
        use = path if kind == "transports" else (*path, "use")
        where = self.job.where(use)
        if (kind, reference) in self._failed:
            return None
        try:
            record = find(kind, reference, self.records, where)
            record = self.lock.checked(record, where) if self.lock is not None else record
            cls = load(record, where)
        except PluginError as error:
            self.errors.append(error)
            self._failed.add((kind, reference))
            return None
        try:
            checked = validate_options(self.job, cls, options, (*path, "options"))
        except RolemeshError as error:
            self.errors += getattr(error, "errors", (error,))
            return None
        return Selected(record, cls, checked, where)

    def check_workload(self, role: str, selected: Selected, world_size: int) -> None:
        options: Path = ("roles", role, "options")
        if isinstance(world_size, WorldSize) and selected.cls.group == "collective":
            self.errors.append(
                JobFileError(
                    f"role {role} is elastic, but its ranks are a collective group, which needs all of them",
                    where=self.job.where(("roles", role, "world_size")),
                    remedy=f"give it a number of ranks, e.g. roles.{role}.world_size={int(world_size)}",
                )
            )
        try:
            selected.cls.check(selected.options, world_size)
        except RolemeshError as error:
            self.errors.append(self._placed(error, options))
        except Exception as error:
            self.errors.append(
                PluginError(
                    f"the workload {selected.record} failed in check(): {type(error).__name__}: {error}",
                    where=self.job.where(options),
                    remedy=f"check its options, or report it to the author of {selected.record.distribution}",
                )
            )

    def _placed(self, error: RolemeshError, options: Path) -> RolemeshError:
        """The error with its place in the job file: a workload knows only the option's name, if that."""
        path = (*options, *error.where.split(".")) if error.where else options
        if not error.where or not self.job.places.resolve(path)[1]:
            where = self.job.where(path)
        else:
            where = f"{self.job.where(options)}: {error.where}"
        return type(error)(error.what, where=where, remedy=error.remedy)


def validate_options(job: JobFile, cls: type[Any], options: Mapping[str, Any], path: Path) -> BaseModel:
    """`cls.Options` from the mapping at `path`; paths and import strings in it are relative to the job file.

    Raises `OptionsError`, or `Problems` with all that were found.
    """
    try:
        checked: BaseModel = cls.Options.model_validate(options, context={"base": str(job.base)})
    except ValidationError as error:
        raise_all(job.problems(error, cls.Options, path, OptionsError))
        raise
    except RolemeshError as error:
        raise OptionsError(error.what, where=job.where(path), remedy=error.remedy) from error
    return checked
