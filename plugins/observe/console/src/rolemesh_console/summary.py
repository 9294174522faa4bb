"""The console's summary of a job: how it ended, its results, and the places of its files. Builds renderables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rolemesh.runs.run import EVENTS_FILE, LOGS_DIR, METRICS_FILE, RESULT_FILE
from rolemesh_console.kept import kept_lines
from rolemesh_console.statistics import Statistics
from rolemesh_console.text import duration, number, percent, relative, state_style

__all__ = ["before_and_after", "kept", "summary"]

MAX_ROWS = 8
MAX_CELL = 160
MARKS = {"done": "✔", "failed": "✘", "interrupted": "■"}


def summary(stats: Statistics, result: dict[str, Any]) -> RenderableType:
    """Return the output that remains on the screen when a job has ended. `result` is the content of ``result.json``.

    The reason of a failure is left out: the verb that watched the job prints it on stderr, with any observer.
    """
    parts: list[RenderableType] = [_head(stats, result)]
    if (metrics := _metrics(stats)) is not None:
        parts += ["", metrics]
    if (times := _times(stats)) is not None:
        parts += ["", times]
    for name, (first, last) in stats.records.items():
        parts += ["", before_and_after(name, first, last)]
    if (files := _files(stats, result)) is not None:
        parts += ["", files]
    return Group(*parts)


def _head(stats: Statistics, result: dict[str, Any]) -> RenderableType:
    status = str(result.get("status", "ended"))
    name = str(result.get("name") or (stats.run.name if stats.run else "job"))
    done, total = result.get("committed_steps", stats.finished), result.get("steps")
    words = Text.assemble((f"{MARKS.get(status, '•')} {name} {status}", f"bold {state_style(status)}"))
    words.append(f" · {done} of {total} steps" if total else f" · {done} steps")
    if isinstance(wall := result.get("wall_s"), int | float):
        words.append(f" · {duration(wall)}")
    parts: list[RenderableType] = [Rule(style="dim"), words]
    if status == "done" and result.get("reason"):
        parts.append(Text(f"  {result['reason']}", style="dim"))
    if stats.left_out:
        parts.append(Text(f"  {number(stats.left_out)} rows left out after errors: see {LOGS_DIR}/", style="yellow"))
    if status == "interrupted" and result.get("message"):
        parts.append(Text(f"  {result['message']}", style="yellow"))
    return Group(*parts)


def _metrics(stats: Statistics) -> RenderableType | None:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("metric", no_wrap=True)
    for heading in ("first", "last", "mean of first third", "of last third"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in stats.featured():
        series = stats.series[name]
        if series.first is None or series.last is None:
            table.add_row(Text(name), Text(number(series.latest)), "", "", "")
            continue
        thirds = series.thirds()
        means = (number(thirds.first), number(thirds.last)) if thirds else ("", "")
        last = number(series.latest) if series.seen > 1 or series.odd else ""
        table.add_row(Text(name), Text(number(series.first[1])), Text(last, style="bold"), *map(Text, means))
    odd = {name: stats.series[name].odd for name in stats.featured()}
    told = [Text(_not_finite(name, *found), style="yellow") for name, found in odd.items() if found]
    return Group(table, *told) if table.row_count else None


def _not_finite(name: str, step: int, steps: int) -> str:
    many = f"{steps} step{'s' * (steps != 1)}"
    return f"! {name} was NaN or infinite in {many}, first in step {step}; no mean has them"


def _times(stats: Statistics) -> RenderableType | None:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("role", "computing", "waiting for input", "blocked on credit", "rest"):
        table.add_column(heading, justify="left" if heading == "role" else "right", no_wrap=True)
    for role, shares in stats.shares(recent=False).items():
        table.add_row(Text(role), *(Text(percent(share)) for share in shares))
    parts: list[RenderableType] = [table] if table.row_count else []
    rates = stats.mean_rates()
    if rates:
        words = " · ".join(f"{name} {number(rate)}/s ({number(stats.amounts[name])})" for name, rate in rates.items())
        parts += [""] * bool(parts) + [Text(words)]
    return Group(*parts) if parts else None


def before_and_after(name: str, first: tuple[int, Any], last: tuple[int, Any]) -> RenderableType:
    """Return a record's first and last value (each with its step): lists of mappings side by side, row by row."""
    title = Text.assemble((name, "bold"), (f"  before (step {first[0]}) and after (step {last[0]})", "dim"))
    before, after = _rows(first[1]), _rows(last[1])
    if before is None or after is None or len(before) != len(after):
        both = Group(Text(f"before: {_cell(first[1])}"), Text(f"after:  {_cell(last[1])}"))
        return Group(title, Padding(both, (0, 0, 0, 2)))
    columns = list(dict.fromkeys(key for row in [*before, *after] for key in row))
    same = [c for c in columns if all(b.get(c) == a.get(c) for b, a in zip(before, after, strict=True))]
    changed = [c for c in columns if c not in same]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in same:
        table.add_column(Text(str(column)), overflow="fold")
    for column in changed:
        table.add_column(Text(f"{column} before"), overflow="fold")
        table.add_column(Text(f"{column} after"), overflow="fold", style="bold")
    for old, new in list(zip(before, after, strict=True))[:MAX_ROWS]:
        cells = [_cell(new.get(c)) for c in same]
        for column in changed:
            cells += [_cell(old.get(column)), _cell(new.get(column))]
        table.add_row(*map(Text, cells))
    more = len(before) - MAX_ROWS
    note = [Text(f"  … and {more} more in {METRICS_FILE}", style="dim")] if more > 0 else []
    return Group(title, table, *note)


def _rows(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, list | tuple) and value and all(isinstance(row, dict) for row in value):
        return list(value)
    return None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    text = str(value).strip().replace("\n", " ⏎ ")
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def kept(stats: Statistics, result: dict[str, Any]) -> list[Text]:
    """Return the remaining snapshot and the command that exports it. Print these lines unwrapped, so that they can be
    copied."""
    where = result.get("run_dir") or (stats.run.run_dir if stats.run else None)
    lines = kept_lines(result, where) if where else []
    return [Text.assemble((f"{heading}  ", "dim"), text) for heading, text in lines]


def _files(stats: Statistics, result: dict[str, Any]) -> RenderableType | None:
    where = result.get("run_dir") or (stats.run.run_dir if stats.run else None)
    if not where:
        return None
    folder = Path(where)
    plots = sorted(path.name for path in folder.glob("*.png"))
    names = [n for n in (*plots, METRICS_FILE, EVENTS_FILE, RESULT_FILE) if n == RESULT_FILE or (folder / n).exists()]
    if (folder / LOGS_DIR).is_dir():
        names.append(f"{LOGS_DIR}/")
    lines = [Text.assemble((f"{relative(folder)}/", "bold"), "  ", " · ".join(names))]
    digests = {role: digest for role, digest in (result.get("state_sha256") or {}).items() if digest}
    if digests:
        shown = " · ".join(f"{role} {digest[:12]}" for role, digest in digests.items())
        lines.insert(0, Text.assemble(("state sha256  ", "dim"), shown))
    return Group(*lines)
