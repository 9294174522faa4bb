"""What is installed: one record per entry point, read from the distributions' metadata. Nothing is imported here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Literal

import msgspec

from rolemesh.errors import PluginError, nearest
from rolemesh.kinds import kind_named, kinds

__all__ = ["ALLOWED", "DISABLED", "PluginRecord", "discover", "find", "normalized"]

DISABLED = "ROLEMESH_DISABLED_PLUGINS"
ALLOWED = "ROLEMESH_PLUGINS"

Status = Literal["available", "disabled", "duplicate", "broken", "incompatible"]


class PluginRecord(msgspec.Struct, frozen=True):
    """An installed plugin. `target` is ``module:attr``; `error` says why `status` is not ``available``.

    `sha256` is what its content must be (see `rolemesh.plugins.lock`), "" if nobody says.

    It is plain data: the driver resolves a name to it once, and every other process imports exactly this.
    """

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    error: str = ""
    status: Status = "available"
    sha256: str = ""

    @property
    def entry_point(self) -> EntryPoint:
        """The entry point that the record was read from."""
        return EntryPoint(self.name, self.target, kind_named(self.kind).group)

    @property
    def what(self) -> str:
        """As it is called in messages: ``the workload 'fsdp' (rolemesh-fsdp 0.1.0)``."""
        return f"the {kind_named(self.kind).singular} {self}"

    def __str__(self) -> str:
        return f"{self.name!r} ({self.distribution} {self.version})"


def normalized(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def discover(only: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> tuple[PluginRecord, ...]:
    """All plugins, or those of the kinds `only`, sorted by kind, name and distribution.

    A name that is switched off has the status ``disabled``; one that two distributions offer is ``duplicate`` in both.
    A distribution that appears twice on ``sys.path`` counts once: the first, which is the one that would be imported.
    """
    environ = os.environ if environ is None else environ
    disabled, allowed = _names(environ.get(DISABLED, "")), _names(environ.get(ALLOWED, ""))
    records = [_judged(record, disabled, allowed) for record in _installed(kinds() if only is None else only)]
    offers: dict[tuple[str, str], list[PluginRecord]] = {}
    for record in records:
        if record.status == "available":
            offers.setdefault((record.kind, record.name), []).append(record)
    for same in offers.values():
        if len(same) > 1:
            who = " and ".join(f"{record.distribution} {record.version}" for record in sorted(same, key=str))
            for record in same:
                error = f"offered by {who}"
                records[records.index(record)] = msgspec.structs.replace(record, status="duplicate", error=error)
    order = list(kinds())
    return tuple(sorted(records, key=lambda record: (order.index(record.kind), record.name, record.distribution)))


def _installed(only: Iterable[str]) -> Iterator[PluginRecord]:
    groups = {kind_named(name).group: name for name in only}
    seen: set[str] = set()
    for distribution in distributions():
        points = [point for point in distribution.entry_points if point.group in groups]
        name = _name(distribution) if points else None
        if name is None or normalized(name) in seen:
            continue
        seen.add(normalized(name))
        for point in points:
            target = point.value.partition("[")[0].strip()  # what follows are extras that it needs
            error = (
                ""
                if target.count(":") == 1 and all(target.split(":"))
                else (f"the entry point {point.name} = {point.value!r} is not module:attribute")
            )
            yield PluginRecord(
                groups[point.group],
                point.name,
                name,
                distribution.version,
                target,
                error,
                "broken" if error else "available",
            )


def _name(distribution: Distribution) -> str | None:
    """None for what is left of an interrupted installation."""
    metadata = distribution.metadata
    return metadata["Name"] if metadata is not None else None


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _matches(record: PluginRecord, names: set[str]) -> bool:
    distribution = normalized(record.distribution)
    return record.name in names or any(
        normalized(head) == distribution and tail in ("", record.name)
        for head, _, tail in (name.partition(":") for name in names)
    )


def _judged(record: PluginRecord, disabled: set[str], allowed: set[str]) -> PluginRecord:
    if _matches(record, disabled):
        return msgspec.structs.replace(record, status="disabled", error=f"switched off by {DISABLED}")
    if allowed and not _matches(record, allowed):
        return msgspec.structs.replace(record, status="disabled", error=f"not in the allow-list {ALLOWED}")
    return record


def find(kind: str, reference: str, records: Sequence[PluginRecord], where: str | None = None) -> PluginRecord:
    """The plugin that a job file means by `reference`, ``name`` or ``distribution:name``.

    Raises `PluginError` for an unknown, ambiguous, disabled or broken one, with what is installed and what to install.
    """
    singular = kind_named(kind).singular
    distribution, _, name = reference.rpartition(":")
    named = [
        record
        for record in records
        if record.kind == kind
        and record.name == name
        and (not distribution or normalized(record.distribution) == normalized(distribution))
    ]
    usable = [record for record in named if record.status != "disabled"]
    if not named:
        raise _unknown(kind, reference, records, where)
    if not usable:
        record = named[0]
        raise PluginError(
            f"the {singular} {record} is disabled: {record.error}",
            where=where,
            remedy=f"remove {name!r} from {DISABLED}" if DISABLED in record.error else f"add {name!r} to {ALLOWED}",
        )
    if len(usable) > 1:
        choices = " or ".join(repr(f"{record.distribution}:{name}") for record in usable)
        raise PluginError(
            f"two distributions offer the {singular} {name!r}: {usable[0].error.removeprefix('offered by ')}",
            where=where,
            remedy=f"write {choices}, or uninstall one of them",
        )
    if usable[0].status == "broken":
        remedy = f"report it to the author of {usable[0].distribution}"
        raise PluginError(f"the {singular} {usable[0]}: {usable[0].error}", where=where, remedy=remedy)
    return msgspec.structs.replace(usable[0], status="available", error="")


def _unknown(kind: str, reference: str, records: Sequence[PluginRecord], where: str | None) -> PluginError:
    name, singular, known = reference.rpartition(":")[2], kind_named(kind).singular, kind_named(kind).known
    installed = sorted({record.name for record in records if record.kind == kind and record.status != "disabled"})
    hints = []
    if other := next((record for record in records if record.name == name and record.kind != kind), None):
        hints.append(f"{name!r} is a {kind_named(other.kind).singular}")
    elif distribution := known.get(name):
        hints.append(f"pip install {distribution}")
    elif name in installed:
        offering = [record.distribution for record in records if record.kind == kind and record.name == name]
        hints.append(f"{name!r} is offered by {', '.join(offering)}")
    elif (close := nearest(name, {*installed, *known})).startswith("did"):
        hints.append(close)
    if not hints:
        hints.append("pip install the distribution that offers it")
    hints.append(f"installed: {', '.join(installed) or 'none'}")
    return PluginError(f"there is no {singular} {reference!r}", where=where, remedy="; ".join(hints))
