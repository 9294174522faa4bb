"""A frame as text of rich, for `--once` and for the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rolemesh_console.text import duration, state_style
from rolemesh_top.frame import EdgeLine, Frame, RankLine

__all__ = ["EDGE_HEADS", "RANK_HEADS", "edge_cells", "header", "path_text", "printed", "rank_cells"]

RANK_HEADS = ("rank", "node", "pid", "state", "step", "computes", "waits", "rest", "most else", "restarts", "phase")
EDGE_HEADS = ("edge", "lag", "waiting", "blocked")
NODE = 12
"""Number of characters of a node's name that are shown."""


def header(frame: Frame) -> Text:
    """Return job, state, step, time and goodput, and below them what the job waits on."""
    steps = f"{frame.step}" + (f" of {frame.steps}" if frame.steps else "")
    text = Text.assemble((_line(frame.name), "bold"), "  ", (_line(frame.state), state_style(frame.state)))
    text.append(f"  {steps} steps")
    if frame.wall_s is not None:
        text.append(f"  {duration(frame.wall_s)}")
    if frame.goodput is not None:
        text.append(f"  goodput {frame.goodput:.0%}")
    text.append(f"  shares of {frame.window_s:.0f} s", style="dim")
    return text.append(f"\n{_line(frame.message)}", style="yellow") if frame.message else text


def rank_cells(line: RankLine) -> tuple[Text, ...]:
    """Return the cells under `RANK_HEADS`."""
    rest = [_bar(line.computing, "green"), _bar(line.waiting, "yellow"), _bar(line.rest, "")]
    return (
        Text(_line(line.rank)),
        Text(_line(line.node)[:NODE]),
        Text(str(line.pid or "")),
        Text(_line(line.state), state_style(line.state)),
        Text(str(line.step) if line.step >= 0 else ""),
        *rest,
        Text(_line(line.most)),
        Text(str(line.restarts or ""), "red"),
        Text(_line(line.phase)),
    )


def edge_cells(line: EdgeLine) -> tuple[Text, ...]:
    """Return the cells under `EDGE_HEADS`."""
    lag = "" if line.lag == "0" else line.lag
    return Text(_line(line.edge)), Text(_line(lag)), _bar(line.waiting, "yellow"), _bar(line.blocked, "red")


def path_text(frame: Frame) -> Text:
    """Return the stations of the critical path, one per line."""
    return Text("\n").join(Text(f"{each.share:>6.1%}  {_line(each.name)}") for each in frame.path)


def printed(frame: Frame) -> Group:
    """Return a whole frame."""
    parts = [header(frame), Text()]
    parts.append(_table(RANK_HEADS, [rank_cells(line) for line in frame.ranks]))  # type: ignore[arg-type]
    if frame.edges:
        parts += [Text(), _table(EDGE_HEADS, [edge_cells(line) for line in frame.edges])]  # type: ignore[list-item]
    if frame.path:
        parts += [Text(), Text("critical path", "dim"), path_text(frame)]
    if frame.events:
        parts += [Text(), Text("events", "dim"), Text("\n".join(frame.events))]
    return Group(*parts)


def _table(heads: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head, justify="right" if head in ("pid", "step", "restarts") else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _bar(part: float, style: str) -> Text:
    """Return a share as ``▌    23%``."""
    full = round(min(1.0, part) * 8)
    return Text.assemble(("█" * full, style or "dim"), " " * (8 - full), f"{part:>5.0%}")


def _line(text: str) -> str:
    """Return text without control characters, which could steer the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
