"""A frame as text of rich, for `--once` and for the screen. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rolemesh_console.text import clock, duration, number, sparkline, state_style
from rolemesh_top.frame import EdgeLine, Frame, RankLine

__all__ = ["EDGE_HEADS", "RANK_HEADS", "Fitted", "fitted_edges", "fitted_ranks", "header", "metrics_table", "path_text"]
__all__ += ["printed"]

RANK_HEADS = ("rank", "node", "pid", "state", "step", "computes", "waits", "rest", "most else", "restarts", "phase")
EDGE_HEADS = ("edge", "lag", "waiting", "blocked")
NODE = 12
"""Number of characters of a node's name that are shown."""
WAITING = 3
"""Number of jobs that wait for room that the header names; it counts the others."""
GAP = 2
"""Number of blanks between two columns."""
_KEPT = ("rank", "step", "computes", "edge", "waiting")
"""Columns that are shown even if all of their cells are empty."""
_ELASTIC = {"most else": 14, "phase": 9, "edge": 24}
"""Columns whose texts are cut off to fit, and the number of characters that they have at least."""
_LEFT_OUT = ((), ("node",), ("node", "pid"), ("node", "pid", "rest"), ("node", "pid", "rest", "phase"))
"""Columns that a narrow table lacks, after its bars: the next set if the one before does not suffice."""


class Fitted(NamedTuple):
    """A table as it fits a width: the numbers of its columns, and its rows."""

    columns: tuple[int, ...]
    rows: list[tuple[Text, ...]]


def header(frame: Frame) -> Text:
    """Return job, state, step, time, speed and goodput; below them the present step, warnings, and other jobs that wait
    for room."""
    steps = f"{frame.step}" + (f" of {frame.steps}" if frame.steps else "")
    text = Text.assemble((_line(frame.name), "bold"), "  ", (_line(frame.state), state_style(frame.state)))
    text.append(f"  {steps} steps")
    if frame.wall_s is not None:
        text.append(f"  {duration(frame.wall_s)}")
    if frame.step_s is not None:
        speed = f"{duration(frame.step_s)}/step" if frame.step_s >= 0.1 else f"{number(1 / frame.step_s)} steps/s"
        text.append(f"  {speed}")
    if frame.left_s is not None:
        text.append(f"  {clock(frame.left_s)} left")
    if frame.goodput is not None:
        text.append(f"  goodput {frame.goodput:.0%}")
    text.append(f"  shares of {frame.window_s:.0f} s", style="dim")
    if frame.under_way:
        text.append(f"\nin this step  {_line(', '.join(frame.under_way))}", style="green")
    if frame.message:
        text.append(f"\n{_line(frame.message)}", style="yellow")
    more = len(frame.waiting) - WAITING
    for told in (*frame.waiting[:WAITING], *([f"{more} more jobs wait for room"] if more > 0 else [])):
        text.append(f"\n{_line(told)}", style="dim")
    return text


def metrics_table(frame: Frame) -> Table:
    """Return the metrics, one per line: name, latest value, trend, and a curve."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for column in ("left", "right", "left", "left"):
        table.add_column(justify=column, no_wrap=True, overflow="ellipsis")
    for each in frame.metrics:
        value = Text(number(each.value), "bold" if math.isfinite(each.value) else "bold red")
        table.add_row(Text(_line(each.name)), value, Text(each.trend, "dim"), Text(sparkline(each.curve), "cyan"))
    return table


def rank_cells(line: RankLine, bars: bool = True) -> tuple[Text, ...]:
    """Return the cells under `RANK_HEADS`."""
    return (
        Text(_line(line.rank)),
        Text(_line(line.node)[:NODE]),
        Text(str(line.pid or "")),
        Text(_line(line.state), state_style(line.state)),
        Text(str(line.step) if line.step >= 0 else ""),
        _share(line.computing, "green", bars),
        _share(line.waiting, "yellow", bars),
        _share(line.rest, "", bars),
        Text(_line(line.most)),
        Text(str(line.restarts or ""), "red"),
        Text("" if line.state == "done" else _line(line.phase)),  # its phase says the same
    )


def edge_cells(line: EdgeLine, bars: bool = True) -> tuple[Text, ...]:
    """Return the cells under `EDGE_HEADS`."""
    lag = Text("" if line.lag == "0" else _line(line.lag))
    return Text(_line(line.edge)), lag, _share(line.waiting, "yellow", bars), _share(line.blocked, "red", bars)


def fitted_ranks(lines: Sequence[RankLine], width: int) -> Fitted:
    """Return the table of ranks in lines of at most `width` characters, as far as the ranks' names allow."""
    return _fitted(RANK_HEADS, {bars: [rank_cells(line, bars) for line in lines] for bars in (True, False)}, width)


def fitted_edges(lines: Sequence[EdgeLine], width: int) -> Fitted:
    """Return the table of edges in lines of at most `width` characters, as far as possible."""
    return _fitted(EDGE_HEADS, {bars: [edge_cells(line, bars) for line in lines] for bars in (True, False)}, width)


def _fitted(heads: Sequence[str], found: Mapping[bool, Sequence[Sequence[Text]]], width: int) -> Fitted:
    for bars, out in ((True, ()), *((False, out) for out in _LEFT_OUT)):
        rows = found[bars]
        columns = [
            at
            for at, head in enumerate(heads)
            if head not in out and (head in _KEPT or any(cells[at].plain for cells in rows))
        ]
        wide = {at: max(len(heads[at]), *(cells[at].cell_len for cells in rows), 0) for at in columns}
        least = {at: min(wide[at], _ELASTIC.get(heads[at], wide[at])) for at in columns}
        room = width - GAP * (len(columns) - 1) - sum(least.values())
        if room >= 0:
            break
    for at in sorted(columns, key=lambda at: wide[at] - least[at]):  # what needs little gets all of it
        elastic = [other for other in columns if wide[other] > least[other]]
        if at in elastic:
            more = min(wide[at] - least[at], max(0, room) // len(elastic))
            room -= more
            wide[at] = least[at] = least[at] + more
    return Fitted(tuple(columns), [tuple(_cut(cells[at], wide[at]) for at in columns) for cells in rows])


def _cut(text: Text, width: int) -> Text:
    text = text.copy()
    text.truncate(width, overflow="ellipsis")
    return text


def path_text(frame: Frame) -> Text:
    """Return the stations of the critical path, one per line."""
    return Text("\n").join(Text(f"{each.share:>6.1%}  {_line(each.name)}") for each in frame.path)


def printed(frame: Frame, width: int) -> Group:
    """Return a whole frame for lines of `width` characters."""
    parts = [header(frame), Text()]
    parts += [metrics_table(frame), Text()] if frame.metrics else []  # type: ignore[list-item]
    parts.append(_table(RANK_HEADS, fitted_ranks(frame.ranks, width)))  # type: ignore[arg-type]
    if frame.edges:
        parts += [Text(), _table(EDGE_HEADS, fitted_edges(frame.edges, width))]  # type: ignore[list-item]
    if frame.path:
        parts += [Text(), Text("critical path", "dim"), path_text(frame)]
    if frame.events:
        parts += [Text(), Text("events", "dim"), _events(frame.events)]  # type: ignore[list-item]
    return Group(*parts)


def _table(heads: Sequence[str], fitted: Fitted) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for head in (heads[at] for at in fitted.columns):
        number = head in ("pid", "step", "restarts")
        table.add_column(head, justify="right" if number else "left", overflow="ellipsis", no_wrap=True)
    for row in fitted.rows:
        table.add_row(*row)
    return table


def _events(events: Sequence[str]) -> Table:
    """Return the events, whose texts are folded beside their times."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    for event in events:
        at, _, said = event.partition("  ")
        table.add_row(Text(at), Text(said, overflow="fold"))
    return table


def _share(part: float, style: str, bar: bool) -> Text:
    """Return a share as ``██       23%``, or only its number."""
    if not bar:
        return Text(f"{part:>4.0%}", style)
    full = round(min(1.0, part) * 8)
    return Text.assemble(("█" * full, style or "dim"), " " * (8 - full), f"{part:>5.0%}")


def _line(text: str) -> str:
    """Return text in one line, without control characters, which could steer the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
