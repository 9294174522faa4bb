"""From the names in a job file to imported classes with checked options. Only the plugins of the
job are imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from rolemesh.errors import (
    JobFileError,
    OptionsError,
    PluginError,
    RolemeshError,
    nearest,
    raise_all,
)
from rolemesh.job_file.loading import JobFile
from rolemesh.job_file.misplaced import misplaced
from rolemesh.job_file.model import Use
from rolemesh.job_file.overrides import Types
from rolemesh.job_file.places import Path
from rolemesh.job_file.problems import problems
from rolemesh.kinds import KERNEL, job_keys, kinds
from rolemesh.plugins.admission import Admission
from rolemesh.plugins.defaults import default_engine, default_plugin
from rolemesh.plugins.discovery import PluginRecord, discover, resolve
from rolemesh.plugins.drivers import load
from rolemesh.plugins.fields import plugin_fields
from rolemesh.plugins.option_types import types_of_plugins

VERSION = ("kind", "distribution", "version")


@dataclass(frozen=True)
class Selected:
    """A plugin of the job: its record, its class, its options, and the place that names it."""

    record: PluginRecord
    cls: type[Any]
    options: BaseModel
    where: str


@dataclass(frozen=True)
class Selection:
    """All plugins of a job. Lists are in the order of the job file."""

    roles: Mapping[str, Selected]
    placement: tuple[Selected, ...]
    failover: tuple[Selected, ...]
    diagnosers: tuple[Selected, ...]
    observers: tuple[Selected, ...]
    engine: Selected
    """The engine that runs the job. Its options are the job file's, or the defaults if another
    engine than the job file's was chosen."""
    used_by_engine: Mapping[str, Selected]
    """Plugins that the engine's options name, by the path of the option: ``transports.local``."""
    declared: Mapping[tuple[str, str], Selected]
    """Plugins of kinds that the kernel does not know, by kind and name; numbers distinguish several
    of one name."""

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Each plugin once, in the order of first use."""
        used = [*self.roles.values(), *self.placement, *self.failover, *self.diagnosers]
        used += [*self.used_by_engine.values(), *self.observers, *self.declared.values()]
        return tuple(dict.fromkeys(selected.record for selected in used))

    def versions(self) -> dict[str, dict[str, str]]:
        """The plugins for ``result.json``: name → kind, distribution, version."""
        return {each.name: {name: getattr(each, name) for name in VERSION} for each in self.records}


def select(
    job: JobFile,
    environ: Mapping[str, str] | None = None,
    admit: Admission | None = None,
    engine: str | None = None,
) -> Selection:
    """Resolve every plugin that a job file names, check its options, and run `Workload.check`.

    With `admit`, a plugin that it refuses is not imported; the engine is exempt. `engine` replaces
    that of the job file.

    Raises `PluginError`, `OptionsError`, or `Problems` with all of them, each with its place in the
    job file.
    """
    chooser = _Chooser(job, discover(environ=environ), admit)
    spec = job.spec
    choose = partial(chooser.choose, "workloads")
    roles = {
        name: choose(role.use, role.options, ("roles", name)) for name, role in spec.roles.items()
    }
    lists = {
        key: [
            chooser.choose(kind, use.use, use.options, (key, i))
            for i, use in enumerate(chooser.uses(key, kind))
        ]
        for key, kind in job_keys().items()
    }
    declared = {
        key: each
        for kind, uses in chooser.listed().items()
        for key, each in chooser.declared(kind, uses)
    }
    runs = chooser.engine(engine)
    used_by_engine = dict(chooser.used_by(runs)) if runs is not None else {}
    for name, selected in roles.items():
        if selected is not None:
            chooser.errors += checked(
                job, name, selected, selected.cls.check, spec.roles[name].world_size
            )
    raise_all(chooser.errors)
    assert runs is not None  # or there was an error
    return Selection(
        roles={name: selected for name, selected in roles.items() if selected},
        engine=runs,
        used_by_engine=used_by_engine,
        declared=declared,
        **{key: tuple(filter(None, chosen)) for key, chosen in lists.items()},
    )


class _Chooser:
    """Chooses plugins one by one and collects the errors, so that one run shows all of them."""

    def __init__(
        self, job: JobFile, records: Sequence[PluginRecord], admit: Admission | None
    ) -> None:
        self.job = job
        self.records = records
        self.admit = admit
        self.types = types_of_plugins(job.base, admit)
        self.errors: list[RolemeshError] = []
        self._failed: set[tuple[str, str]] = set()

    def uses(self, key: str, kind: str) -> list[Use]:
        """The plugins under `key`. If the job file has no such key: the default of the kind.

        The default placement strategy comes last in any case: it places what others leave.
        """
        written: list[Use] = getattr(self.job.spec, key)
        default = default_plugin(kind, self.records)
        if default is None or (key in self.job.spec.model_fields_set and key != "placement"):
            return written
        if written and self._same(kind, written[-1].use, default):
            return written
        return [*written, Use(use=default)]

    def listed(self) -> dict[str, Sequence[Use]]:
        """The plugins of declared kinds. A kind's default comes first, unless the job lists it."""
        listed: dict[str, Sequence[Use]] = dict(self.job.spec.plugins)
        for kind in sorted(kinds().keys() - KERNEL.keys()):
            default, uses = default_plugin(kind, self.records), listed.get(kind, ())
            if default and not any(self._same(kind, use.use, default) for use in uses):
                listed[kind] = [Use(use=default), *uses]
        return listed

    def declared(
        self, kind: str, uses: Sequence[Use]
    ) -> Iterator[tuple[tuple[str, str], Selected]]:
        """Yield the plugins under ``plugins.<kind>``, a kind that some distribution declares."""
        known = [name for name, each in kinds().items() if name not in KERNEL and each.listed]
        if kind not in known:
            what = f"there is no kind {kind!r} of plugins that jobs list here"
            where, other = self.job.where(("plugins", kind)), kinds().get(kind)
            remedy = f"list it under {other.key}" if other and other.key else nearest(kind, known)
            self.errors.append(JobFileError(what, where=where, remedy=remedy))
            return
        chosen = [
            self.choose(kind, use.use, use.options, ("plugins", kind, i))
            for i, use in enumerate(uses)
        ]
        names = [each.record.name for each in chosen if each]
        for index, each in enumerate(filter(None, chosen)):
            name, several = names[index], names.count(names[index]) > 1
            yield (kind, f"{name}#{names[: index + 1].count(name)}" if several else name), each

    def engine(self, chosen: str | None) -> Selected | None:
        """Return the engine `chosen`, or the job file's, or the default one."""
        spec = self.job.spec.engine
        try:
            written = spec.use or default_engine(self.records)
        except PluginError as error:
            if chosen is None:
                self.errors.append(error)
                return None
            written = chosen
        unlooked = _Chooser(self.job, self.records, None)
        unlooked.types = self.types
        if chosen is None or self._same("engines", chosen, written):
            options = spec.options
            where = self.job.where(("engine", "use"))
        else:
            options = {}
            where = "--engine"
        found = unlooked.choose("engines", chosen or written, options, ("engine",), where)
        self.errors += unlooked.errors
        return found

    def used_by(self, engine: Selected) -> Iterator[tuple[str, Selected]]:
        """Yield the plugins that the engine's options name."""
        for field in plugin_fields(type(engine.options)):
            use = field.chosen(engine.options)
            path = ("engine", "options", *field.path)
            if found := self.choose(field.kind, use.use, use.options, path, self.job.where(path)):
                yield ".".join(field.path), found

    def _same(self, kind: str, one: str, other: str) -> bool:
        """Return whether two references name the same plugin."""
        try:
            found = [resolve(kind, each, self.records, self.job.base) for each in (one, other)]
        except PluginError:
            return one.rpartition(":")[2] == other.rpartition(":")[2]
        return found[0].target == found[1].target

    def choose(
        self,
        kind: str,
        reference: str,
        options: dict[str, Any],
        path: Path,
        where: str | None = None,
    ) -> Selected | None:
        """Return the plugin; None if there was an error, which is then in `errors`. Each plugin is
        reported once."""
        where = where or self.job.where((*path, "use"))
        if (kind, reference) in self._failed:
            return None
        try:
            record = resolve(kind, reference, self.records, self.job.base, where)
            record = self.admit.look(record, where) if self.admit is not None else record
            cls = load(record, where)
            path = (*path, "options")
            values = validate_options(self.job, cls, options, path, self.types)
            return Selected(record, cls, values, where)
        except PluginError as error:
            self.errors.append(error)
            self._failed.add((kind, reference))
        except RolemeshError as error:
            self.errors += getattr(error, "errors", (error,))
        return None


def checked(
    job: JobFile, role: str, used: Selected, check: Callable[..., None], *told: Any
) -> Iterator[RolemeshError]:
    """Yield the errors of a workload's own `check` of the role's options; `told` are its further
    arguments."""
    path: Path = ("roles", role, "options")
    try:
        check(used.options, *told)
    except RolemeshError as error:
        yield from (job.placed(each, path) for each in getattr(error, "errors", (error,)))
    except Exception as error:
        what = f"{used.record.what} failed in {check.__name__}(): {type(error).__name__}: {error}"
        remedy = f"check its options, or report it to {used.record.author}"
        yield PluginError(what, kind="misbehaved", where=job.where(path), remedy=remedy)


def validate_options(
    job: JobFile, cls: type[Any], options: Mapping[str, Any], path: Path, types: Types
) -> BaseModel:
    """Return `cls.Options` from the mapping at `path`. Paths and import strings in it are relative
    to the job file.

    Raises `OptionsError`, or `Problems` if there are several.
    """
    try:
        checked: BaseModel = cls.Options.model_validate(options, context={"base": str(job.base)})
    except ValidationError as error:
        elsewhere = partial(misplaced, types, job.raw, job.places)
        raise_all(problems(error, cls.Options, job, path, OptionsError, elsewhere))
        raise
    except RolemeshError as error:
        raise OptionsError(error.what, where=job.where(path), remedy=error.remedy) from error
    return checked
