"""The console's view of a running job: progress, metrics, rates, ranks. Builds rich renderables and prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rolemesh.api.observer import JobStatus, RankStatus
from rolemesh_console.statistics import Statistics
from rolemesh_console.text import activity, clock, duration, number, percent, share_bar, sparkline, state_style

__all__ = ["live_view", "starting_line"]

MAX_RANK_ROWS = 16
MAX_WARNINGS = 4
SPARK = 24
NARROW = 100
"""Width below which the table of ranks lacks nodes and processes, so that it has room for what ranks do."""


def live_view(stats: Statistics, status: JobStatus | None, now: float, width: int | None = None) -> RenderableType:
    """Return the whole view at time `now` (seconds since 1970), `width` cells wide; None: as wide as the terminal."""
    parts: list[RenderableType] = [_progress(stats, status, now)]
    if metrics := _metrics(stats):
        parts += ["", metrics]
    if facts := _facts(stats):
        parts += ["", facts]
    if status is not None and status.ranks:
        parts += ["", _ranks(stats, status, narrow=width is not None and width < NARROW)]
    if status is not None and status.warnings:
        more = len(status.warnings) - MAX_WARNINGS
        parts += ["", *(Text(f"warning: {warning}", style="yellow") for warning in status.warnings[:MAX_WARNINGS])]
        parts += [Text(f"… and {more} more warnings", style="dim")] if more > 0 else []
    name = stats.run.name if stats.run else status.name if status else "job"
    state = status.state if status else "starting"
    title = Text.assemble((name, "bold"), " · ", (state, state_style(state)))
    if stats.run and stats.run.backend:
        title.append(f" · {stats.run.backend}")
    elapsed = f"{duration(now - status.started)}" if status else ""
    body = Padding(Group(*parts), (0, 1))
    return Panel(
        body, title=title, title_align="left", subtitle=elapsed, subtitle_align="right", border_style="dim", width=width
    )


def starting_line(stats: Statistics, status: JobStatus, now: float) -> str:
    """Return what a job without steps so far waits for: the slowest ranks, and how long they have taken."""
    waiting = [rank for rank in status.ranks if rank.state in ("starting", "up")]
    if not status.ranks or all(rank.state == "starting" for rank in status.ranks):
        up = sum(agent.state == "up" for agent in status.agents)
        agents = f"{up} of {len(status.agents)} agents are up" if status.agents else "reserving nodes"
        return f"starting: {agents} ({duration(now - status.started)})"
    if not waiting:
        return "starting: every rank is ready"
    words = []
    for rank in waiting[:3]:
        since = stats.rank_up.get(rank.ref, status.started)
        doing = "setting up" if rank.state == "up" else "starting"
        words.append(f"{rank.ref} {doing} ({duration(max(0.0, now - since))})")
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return f"starting: {', '.join(words)}{more}"


def _progress(stats: Statistics, status: JobStatus | None, now: float) -> RenderableType:
    total = stats.run.steps if stats.run else status.steps if status else 0
    done = max(stats.finished, status.committed + 1 if status else 0)
    if status is None or (status.state in ("new", "starting") and not done):
        words = starting_line(stats, status, now) if status else "starting"
        return Text(words, style="yellow")
    if total is None:
        return _counted(stats, status, done)
    share = done / total if total else 1.0
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    pace = stats.seconds_per_step()
    left = stats.seconds_left(total, now)
    tail = [percent(share)]
    if status.state == "running" and left is not None and done < total:
        tail.append(f"{clock(left)} left")
    if pace is not None:
        tail.append(f"{duration(pace)}/step" if pace >= 0.1 else f"{number(1 / pace)} steps/s")
    bar = ProgressBar(total=max(total, 1), completed=min(done, max(total, 1)), complete_style="cyan")
    grid.add_row(Text(f"step {done}/{total}", style="bold"), bar, Text("   ".join(tail)))
    return _with_message(grid, status)


def _counted(stats: Statistics, status: JobStatus, done: int) -> RenderableType:
    """Return the progress of a job without a known number of steps."""
    pace = stats.seconds_per_step()
    words = "" if pace is None else f"   {duration(pace)}/step" if pace >= 0.1 else f"   {number(1 / pace)} steps/s"
    return _with_message(Text.assemble((f"step {done}", "bold"), words), status)


def _with_message(shown: RenderableType, status: JobStatus) -> RenderableType:
    message = status.message or (status.finishing and f"finishing: {status.finishing}")
    return Group(shown, Text(message, style=state_style(status.state))) if message else shown


def _metrics(stats: Statistics) -> Table | None:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for heading, justify in (("metric", "left"), ("now", "right"), ("first third → last", "right"), ("", "left")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in stats.featured():
        series = stats.series[name]
        thirds = series.thirds()
        trend = f"{number(thirds.first)} → {number(thirds.last)}" if thirds else ""
        latest = number(series.latest)
        if series.last is not None and series.last[0] + 1 < stats.finished:
            latest += f" (step {series.last[0]})"
        table.add_row(
            Text(name), Text(latest, style="bold"), Text(trend), Text(sparkline(series.points(SPARK)), "cyan")
        )
    return table if table.row_count else None


def _facts(stats: Statistics) -> Text | None:
    facts = [f"{name.removesuffix('tokens').rstrip('_') or 'all'} {number(r)}" for name, r in stats.rates().items()]
    text = Text()
    if facts:
        text.append("tokens/s  ", style="dim").append(" · ".join(facts))
    if stats.staleness:
        text.append("\n" if facts else "").append("staleness ", style="dim")
        text.append(" · ".join(f"{label} {number(value)}" for label, value in stats.staleness.items()))
    return text if text.plain else None


def _ranks(stats: Statistics, status: JobStatus, narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("rank", no_wrap=True)
    if not narrow:
        table.add_column("node", no_wrap=True, overflow="ellipsis")
        table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("doing", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(
        Text.assemble(("█", "green"), " computes ", "·", " waits ", ("▒", "red"), " blocked"), no_wrap=True
    )
    shares = stats.shares(recent=True)
    shown: set[str] = set()
    for row in _rank_rows(status.ranks):
        role, cells = row
        share = Text()
        if role in shares and role not in shown:
            share = share_bar(shares[role], 10).append(
                "  " + "/".join(f"{100 * part:.0f}" for part in shares[role][:3]) + " %"
            )
        shown.add(role)
        table.add_row(*(cells[:1] + cells[3:] if narrow else cells), share)
    return table


def _rank_rows(ranks: Iterable[RankStatus]) -> Sequence[tuple[str, tuple[Text, ...]]]:
    """Return a row per rank, or a row per role if there are many ranks."""
    ranks = list(ranks)
    if len(ranks) <= MAX_RANK_ROWS:
        return [(r.role, (Text(str(r.ref)), Text(r.node), _pid(r.pid), _step(r.step), activity(r))) for r in ranks]
    rows = []
    for role in dict.fromkeys(rank.role for rank in ranks):
        mine = [rank for rank in ranks if rank.role == role]
        nodes = {rank.node for rank in mine}
        steps = sorted({rank.step for rank in mine})
        doing = Counter(activity(rank).plain for rank in mine)
        words = ", ".join(f"{count}× {what}" for what, count in doing.most_common(3))
        where = Text(mine[0].node if len(nodes) == 1 else f"{len(nodes)} nodes")
        at = _step(steps[0]) if len(steps) == 1 else Text(f"{steps[0]}–{steps[-1]}")
        rows.append((role, (Text(f"{role} ×{len(mine)}"), where, Text(), at, Text(words))))
    return rows


def _pid(pid: int) -> Text:
    return Text(str(pid) if pid else "")


def _step(step: int) -> Text:
    return Text(str(step) if step >= 0 else "–")
