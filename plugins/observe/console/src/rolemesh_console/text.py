"""Numbers, durations, sparklines and shares as short text, for the console and the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from rolemesh.api.observer import RankStatus

__all__ = [
    "activity",
    "amount",
    "clock",
    "duration",
    "number",
    "percent",
    "relative",
    "share_bar",
    "sparkline",
    "state_style",
]

_BARS = "▁▂▃▄▅▆▇█"
_STATES = {
    "running": "green",
    "done": "green",
    "ready": "cyan",
    "starting": "yellow",
    "stopping": "yellow",
    "interrupted": "yellow",
    "up": "green",
    "stopped": "dim",
    "failed": "bold red",
    "lost": "bold red",
    "dead": "bold red",
}


def number(value: float) -> str:
    """Return the number with four significant digits and grouped thousands."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.2e}"


def duration(seconds: float) -> str:
    """Return the duration: ``0.8 s``, ``42 s``, ``2:05`` (minutes and seconds), ``3:02:05``."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def clock(seconds: float) -> str:
    """Return minutes and seconds in any case: ``0:07``."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percent(share: float) -> str:
    """Return the share in percent: ``35 %``."""
    return f"{100 * share:.0f} %"


def sparkline(values: Sequence[float]) -> str:
    """Return one character per value, scaled between the least and the greatest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return _BARS[3] * len(values)
    # Halved first: the difference of two large floats may overflow.
    spread = high / 2 - low / 2
    return "".join(_BARS[min(7, int((value / 2 - low / 2) / spread * 8))] for value in values)


def amount(size: int) -> str:
    """Return the size: ``512 bytes``, ``1.2 MB`` (10^6 bytes), ``14.0 GB``."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def share_bar(shares: tuple[float, float, float, float], width: int) -> Text:
    """Return computing, waiting, blocked and the rest as one bar of `width` cells."""
    ends = [round(sum(shares[: count + 1]) * width) for count in range(3)]
    bar = Text("█" * ends[0], style="green")
    bar.append("·" * (ends[1] - ends[0]), style="dim")
    bar.append("▒" * (ends[2] - ends[1]), style="red")
    bar.append(" " * (width - ends[2]))
    return bar


def state_style(state: str) -> str:
    """Return the colour of a state."""
    return _STATES.get(state, "")


def activity(rank: RankStatus) -> Text:
    """Return the present activity of a rank, in words."""
    if rank.state != "running":
        words = {"up": "setting up", "ready": "ready, waiting for the others"}.get(rank.state, rank.state)
        return Text(words, style=state_style(rank.state))
    match rank.phase:
        case "computing":
            return Text(f"computing {rank.doing}".rstrip(), style="green")
        case "waiting":
            return Text(f"waiting for {rank.doing or 'input'}", style="dim")
        case "blocked":  # at an edge, the peer has a role and a dot; else `doing` is the operator
            return Text(f"blocked by {rank.doing}" if "." in rank.doing else "waiting for memory", style="red")
        case "turn":
            return Text("waiting for its turn", style="dim")
        case "loading":
            return Text("loading, or making room", style="dim")
        case "gathering":
            return Text("waiting for its group", style="dim")
        case "serving":
            return Text("serving calls", style="green")
        case "following":
            return Text("waiting for callers", style="dim")
        case "calling":
            return Text(f"{rank.doing}: waiting for an answer" if rank.doing else "waiting for an answer", style="dim")
        case "idle":
            return Text("waiting for other ranks or the master", style="dim")
        case "saving":
            return Text("saving a snapshot", style="dim")
        case "stopped":
            return Text("stopped by a signal", style="red")
    return Text(rank.phase or "running", style="dim")


def relative(path: str | Path) -> str:
    """Return the path relative to the current folder, unless it leads two or more folders up."""
    seen = os.path.relpath(path)
    return str(path) if seen.startswith(os.pardir + os.sep + os.pardir) else seen
