"""Find the installed plugins: one record per entry point, read from the metadata of distributions.
Nothing is imported here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal
from warnings import warn

import msgspec

from rolemesh.api.import_ref import ImportRef, find_module, import_paths, written
from rolemesh.errors import PluginError, did_you_mean
from rolemesh.kinds import kind_named, kind_names
from rolemesh.kinds.installed import entry_points, leftovers, normalized
from rolemesh.kinds.offered import RENAMED, how_to_get, offered

DISABLED = "ROLEMESH_DISABLED_PLUGINS"
ALLOWED = "ROLEMESH_PLUGINS"

OFFERED = "available", "duplicate"
"""States of plugins that jobs may use. `find` says which distributions offer a duplicate."""
Status = Literal["available", "disabled", "duplicate", "broken", "incompatible"]


class PluginRecord(msgspec.Struct, frozen=True):
    """An installed plugin, as plain data. The driver resolves a name to a record once; every other
    process imports exactly this target.

    - `target`: ``module:attr``.
    - `error`: why `status` is not ``available``.
    - `remedy`: how to enable a disabled plugin.
    - `sha256`: the hash that the plugin's content must have in every process that imports it; ""
      for any content.

    A class of the job's own has no distribution, and its `target` is its file or module and its
    name (see `resolve`).
    """

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    error: str = ""
    status: Status = "available"
    sha256: str = ""
    remedy: str = ""

    @property
    def entry_point(self) -> EntryPoint:
        """Return the entry point that the record was read from."""
        return EntryPoint(self.name, self.target, f"rolemesh.{self.kind}")

    @property
    def what(self) -> str:
        """The plugin in messages: ``the workload 'fsdp' (rolemesh-fsdp 0.1.0)``."""
        return f"the {kind_named(self.kind).singular} {self}"

    def is_called(self, reference: str) -> bool:
        """Return whether the reference, ``name`` or ``distribution:name``, means this plugin."""
        distribution, _, name = reference.rpartition(":")
        return name == self.name and normalized(distribution) in ("", normalized(self.distribution))

    @property
    def author(self) -> str:
        """The address for reports of its bugs."""
        return f"the author of {self.distribution}" if self.distribution else "whoever wrote it"

    def __str__(self) -> str:
        return (
            f"{self.name!r} ({self.distribution} {self.version})"
            if self.distribution
            else repr(self.name)
        )


def resolve(
    kind: str,
    reference: str,
    records: Sequence[PluginRecord],
    base: str | Path,
    where: str | None = None,
) -> PluginRecord:
    """Return the plugin that a job file in the folder `base` names: an installed plugin (see
    `find`), or a class of the job's own.

    Such a class is written as ``file.py:Class``, relative to `base`, or as an importable
    ``package.module:Class``.
    """
    module, _, name = reference.partition(":")
    if name and not any(record.is_called(reference) for record in records):
        import_paths(base)
        if module.endswith(".py"):
            return PluginRecord(kind, reference, "", "", f"{Path(base).resolve() / module}:{name}")
        if find_module(module):
            return PluginRecord(kind, reference, "", "", reference)
    own: list[str] = []
    with suppress(ValueError, SyntaxError):
        own = [] if name or module[-3:] != ".py" else written(ImportRef(module, str(base)))
    if own:
        what, remedy = f"{reference!r} names a file only", f"write {' or '.join(own)}"
        raise PluginError(what, kind="missing", where=where, remedy=remedy)
    return find(kind, reference, records, where)


def discover(
    only: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[PluginRecord, ...]:
    """Return all plugins, or those of the kinds `only`, sorted by kind, name and distribution.

    A name that is switched off has the status ``disabled``. A name that two distributions offer is
    ``duplicate`` in both. If a distribution appears twice on ``sys.path``, only the first one with
    complete metadata counts.
    """
    environ = os.environ if environ is None else environ
    order = kind_names()
    for kind in set(only or ()).difference(order):
        kind_named(kind)  # says why there is none
    disabled = _names(environ.get(DISABLED, ""))
    allowed = _names(environ.get(ALLOWED, ""))
    wanted = order if only is None else only
    records = [_judged(record, disabled, allowed) for record in _records(wanted)]
    offers: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        if record.status == "available":
            offers.setdefault((record.kind, record.name), []).append(record)
    for same in offers.values():
        if len(same) > 1:
            clash: Any = {"status": "duplicate", "error": f"offered by {_offering(same)}"}
            for record in same:
                records[records.index(record)] = msgspec.structs.replace(record, **clash)
    records.sort(key=lambda each: (order.index(each.kind), each.name, each.distribution))
    return tuple(records)


def _offering(records: Iterable[PluginRecord]) -> str:
    return " and ".join(sorted(f"{each.distribution} {each.version}" for each in records))


def _records(only: Iterable[str]) -> Iterator[PluginRecord]:
    for kind in only:
        for point in (point for point in entry_points() if point.group == f"rolemesh.{kind}"):
            assert point.dist is not None  # of what `entry_points` finds it never is
            metadata = point.dist.metadata
            target = point.value.partition("[")[0].strip()  # what follows are extras that it needs
            record = PluginRecord(kind, point.name, metadata["Name"], metadata["Version"], target)
            if target.count(":") != 1 or not all(target.split(":")):
                error = f"the entry point {point.name} = {point.value!r} is not module:attribute"
                record = msgspec.structs.replace(record, status="broken", error=error)
            yield record


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _judged(record: PluginRecord, disabled: set[str], allowed: set[str]) -> PluginRecord:
    def among(names: set[str]) -> bool:
        return any(
            record.is_called(name) or normalized(name.removesuffix(":")) == distribution
            for name in names
        )

    distribution = normalized(record.distribution)
    if among(disabled):
        why, remedy = f"switched off by {DISABLED}", f"remove {record.name!r} from {DISABLED}"
        return msgspec.structs.replace(record, status="disabled", error=why, remedy=remedy)
    if allowed and not among(allowed):
        why, remedy = f"not in the allow-list {ALLOWED}", f"add {record.name!r} to {ALLOWED}"
        return msgspec.structs.replace(record, status="disabled", error=why, remedy=remedy)
    return record


def find(
    kind: str, reference: str, records: Sequence[PluginRecord], where: str | None = None
) -> PluginRecord:
    """Return the plugin that a job file names by `reference`, ``name`` or ``distribution:name``.

    Raises `PluginError` if it is unknown, ambiguous, disabled or broken; the error lists the
    installed plugins and what to install.
    """
    name = reference.rpartition(":")[2]
    named = [record for record in records if record.kind == kind and record.is_called(reference)]
    if not named and (new := offered(kind, RENAMED).get(name)):
        warn(f"{where}: {reference!r} is called {new!r} now: write {new}", FutureWarning, 2)
        return msgspec.structs.replace(find(kind, new, records, where), name=name)
    if not named:
        raise _unknown(kind, reference, records, where)
    usable = [record for record in named if record.status != "disabled"]
    record = (usable or named)[0]
    if len(usable) == 1 and record.status != "broken":
        return msgspec.structs.replace(record, status="available", error="")
    if not usable:
        what = f"{record.what} is disabled: {record.error}"
        raise PluginError(what, kind="disabled", where=where, remedy=record.remedy)
    if len(usable) > 1:
        known, choices = kind_named(kind), [f"{each.distribution}:{name}" for each in usable]
        what = f"two distributions offer the {known.singular} {name!r}: {_offering(usable)}"
        way = f"set {DISABLED}=" if kind == "commands" else "write "
        remedy = f"{way}{' or '.join(map(repr, choices))}, or uninstall one of them"
        raise PluginError(what, kind="ambiguous", where=where, remedy=remedy)
    raise PluginError(
        f"{record.what}: {record.error}", where=where, remedy=f"report it to {record.author}"
    )


def _unknown(
    kind: str, reference: str, records: Sequence[PluginRecord], where: str | None
) -> PluginError:
    module, _, name = reference.partition(":")
    name, said = name or module, kind_named(kind, where)
    installed = sorted(
        {record.name for record in records if record.kind == kind and record.status != "disabled"}
    )
    named = [each for each in records if each.name == name]
    if others := [each.kind for each in named if each.kind != kind]:
        other = kind_named(others[0])
        article = "an" if other.singular[0] in "aeio" else "a"
        place = other.key and f": list it under {other.key}"
        hint = f"{name!r} is {article} {other.singular}{place}"
    elif named:
        hint = f"{name!r} is offered by {', '.join(each.distribution for each in named)}"
    elif not (hint := how_to_get(kind, name) or did_you_mean(name, {*installed, *offered(kind)})):
        file = module if module.endswith(".py") else "file.py"
        hint = f"write {file}:Class for your own, or pip install what offers it"
        missing = [f"there is no module {module!r}"] if module != name else []
        hint = "; ".join([*missing, hint, *map(str, leftovers())])
    remedy = f"{hint}; installed: {', '.join(installed) or 'none'}"
    what = f"there is no {said.singular} {reference!r}"
    return PluginError(what, kind="missing", where=where, remedy=remedy)
