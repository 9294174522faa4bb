"""The reports of operators about the items of `Balanced` rows: each item counts once, from one rank. Pure.

Two ranks may make the same item (`extensions.sharing`), and a rank that starts again makes some items again. So metrics
that are reported with an item in hand travel by item, as a record of the rank's line. They are added up when the parts
of all ranks are together. If several ranks made an item, the report of the lowest rank counts, like its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from rolemesh_runtime.metrics import Metrics

__all__ = ["ItemReports", "has_all_items", "reports_record", "settled"]

ItemReports: TypeAlias = Mapping[int, Sequence[Any]]
"""The means and sums that one call reported, by item, as in `Metrics`. Each item has an entry, even without reports."""
PREFIX = "\0items "
"""Prefix of the names of these records, which no observer sees."""


def reports_record(label: str, step: int, rank: int, items: int, reports: ItemReports) -> dict[str, Any]:
    """Return the record that carries a rank's `reports` of call `label` in `step` with its metrics line.

    `items` is the number of items that all ranks of the role make in this step.
    """
    return {f"{PREFIX}{step} {rank} {label}": [items, dict(reports)]}


def has_all_items(parts: Iterable[Metrics]) -> bool:
    """Return True if the parts of a line together have the reports of all items.

    An item is missing if a part comes from an earlier life of a rank, and other ranks have shared its items since in
    another way. Then the part of the rank's present life is on its way.
    """
    found: dict[tuple[int, str], tuple[int, set[int]]] = {}
    for part in parts:
        for step, _, label, items, reports in _reports(part.records):
            found.setdefault((step, label), (items, set()))[1].update(reports)
    return all(len(made) >= items for items, made in found.values())


def settled(parts: Sequence[Metrics]) -> list[Metrics]:
    """Return a role's parts of a line, with the reports of each item once instead of the records."""
    chosen: dict[tuple[int, str, int], tuple[int, Sequence[Any]]] = {}
    for part in parts:
        for step, rank, label, _, reports in _reports(part.records):
            for item, report in reports.items():
                at = step, label, int(item)
                if at not in chosen or rank < chosen[at][0]:
                    chosen[at] = rank, report
    if not chosen:
        return list(parts)
    means: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, dict[str, float]] = {}
    for (_, label, _), (_, (item_means, item_sums)) in sorted(chosen.items()):
        for name, (amount, count) in item_means.items():
            slot = means.setdefault(label, {}).setdefault(name, [0.0, 0.0])
            slot[0] += amount
            slot[1] += count
        for name, amount in item_sums.items():
            of = sums.setdefault(label, {})
            of[name] = of.get(name, 0.0) + amount
    first = parts[0]
    items = Metrics(first.role, first.step, first.steps, 0, [0.0, 0.0, 0.0], means, sums)
    return [*(replace(part, records=_others(part.records)) for part in parts), items]


def _reports(records: Mapping[str, Any]) -> Iterable[tuple[int, int, str, int, ItemReports]]:
    """Return step, rank, label, number of items and reports of each record of this kind."""
    for name, value in records.items():
        if name.startswith(PREFIX):
            step, rank, label = name.removeprefix(PREFIX).split(" ", 2)
            yield int(step), int(rank), label, value[0], value[1]


def _others(records: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in records.items() if not name.startswith(PREFIX)}
