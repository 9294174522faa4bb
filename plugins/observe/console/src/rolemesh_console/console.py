"""The `console` observer: a live view on a terminal, a line per step elsewhere, and a summary at the end."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from rolemesh.api.observer import Event, JobStatus, Observer, RunInfo, StepMetrics
from rolemesh.hookspecs import hookimpl
from rolemesh_console.live_view import live_view, starting_line
from rolemesh_console.sentences import sentence
from rolemesh_console.statistics import Statistics
from rolemesh_console.summary import kept, summary
from rolemesh_console.terminal import Terminal
from rolemesh_console.text import clock, duration, number, percent

__all__ = ["ConsoleObserver", "ConsoleOptions"]

PLAIN_WIDTH = 120
PLAIN_INTERVAL_S = 1.0
MOST_TEXT = 20_000
"""Maximum number of characters of a line, which may be a traceback or a user's text."""
_WARNING = re.compile(r"warning (\S+) #\d+")
"""Pattern of the name of a record that `RankContext.warn` makes."""
_NUMBERS = re.compile(r"\d+")


class ConsoleOptions(BaseModel, extra="forbid"):
    """Options of the console."""

    metrics: list[str] = Field(default_factory=list, description="Metrics to feature, in this order; default: all.")
    records: list[str] = Field(
        default_factory=list, description="Records to show at the end: the first value beside the last."
    )
    refresh_hz: float = Field(default=4.0, gt=0, le=30, description="Maximum redraws of the live view per second.")


class ConsoleObserver(Observer):
    """Shows a job to the user who runs it.

    On a terminal it keeps a live view. In a pipe or CI it prints at most one line per second. At the end of the job it
    prints a summary. `console` and `now` (seconds since 1970) are for tests.
    """

    Options: ClassVar[type[BaseModel]] = ConsoleOptions
    side: ClassVar[Literal["master", "driver"]] = "driver"

    def __init__(
        self, options: ConsoleOptions, console: Console | None = None, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(options)
        self._console = console or _console()
        self._now = now
        self._stats = Statistics(tuple(options.metrics), tuple(options.records))
        self._status: JobStatus | None = None
        self._live: Live | None = None
        self._drawn = 0.0
        self._printed_step = 0
        self._printed = 0.0
        self._step_printed = 0.0
        self._said = ""
        self._warned: frozenset[str] = frozenset()
        self._told: set[str] = set()
        """Messages of present warnings that events have told, and whose end events will tell."""

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Open the view."""
        self._stats.run = run
        # In a run in one process the terminal may be a debugger's.
        if self._console.is_terminal and run.backend != "inline":
            self._live = Live(get_renderable=self._view, console=self._console, auto_refresh=False, transient=True)
            # A watcher that is interrupted gets no more hooks, and the terminal its cursor back.
            atexit.register(self._close)
            self._live.start()
        else:
            ranks = sum(run.roles.values())
            steps = f"{run.steps} steps" if run.steps else "steps without end"
            self._say(f"{run.name}: {steps}, {ranks} ranks of {len(run.roles)} roles, in {run.run_dir}")

    @hookimpl
    def event(self, event: Event) -> None:
        """Record a transition, and print the important ones, above the live view if there is one."""
        self._stats.event(event)
        if event.kind in ("snapshot_warning", "snapshot_warning_over") and self._is_known(event):
            return
        said = sentence(event)
        if said is not None:
            self._say(said)
        elif event.kind == "job_running" and self._status is not None and self._live is None:
            self._say(f"every rank is ready after {duration(event.time - self._status.started)}")

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        """Record the metrics and show them."""
        self._stats.steps(metrics)
        for line in metrics:
            for name, text in line.records.items():
                if (found := _WARNING.fullmatch(name)) is not None:
                    self._say(f"warning: {found[1]}, step {line.step}: {text}")
        if self._live is not None:
            self._draw()
        elif self._now() >= self._step_printed + PLAIN_INTERVAL_S:
            self._print_step()

    @hookimpl
    def status(self, status: JobStatus) -> None:
        """Record the present status and show it with its warnings."""
        self._status = status
        self._warn(status.warnings)
        if self._live is not None:
            self._draw()
        elif status.state == "starting" and self._now() >= self._printed + 5 * PLAIN_INTERVAL_S:
            self._say(starting_line(self._stats, status, self._now()))

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        """Close the view and print the summary."""
        if self._live is None and self._printed_step < self._stats.finished:
            self._print_step()
        self._close()
        self._console.print(summary(self._stats, result))
        for line in kept(self._stats, result):
            self._console.print(line, soft_wrap=True)

    def _view(self) -> RenderableType:
        # The terminal's "^C" needs two cells: in a line that is full it would push the view down, and it stayed there.
        return live_view(self._stats, self._status, self._now(), self._console.width - 2)

    def _draw(self) -> None:
        now = time.monotonic()
        if self._live is not None and now >= self._drawn + 1 / self.options.refresh_hz:
            self._drawn = now
            self._live.refresh()

    def _close(self) -> None:
        atexit.unregister(self._close)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._printed = self._now()
            shown = line if len(line) <= MOST_TEXT else f"{line[:MOST_TEXT]} …"
            self._console.print(Text(shown), soft_wrap=True)

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Print new warnings. A warning that only counts up is not new, and events have told of others."""
        untold = [warning for warning in warnings if not any(told in warning for told in self._told)]
        found = {_NUMBERS.sub("", warning): warning for warning in untold}
        for key, warning in found.items():
            if key not in self._warned and self._live is None:
                self._say(f"warning: {warning}")
        if self._live is None and self._warned and not found:
            self._say("what was warned of is over")
        self._warned = frozenset(found)

    def _is_known(self, event: Event) -> bool:
        """Note a warning that an event tells, or its end; return whether the status has told it before."""
        message = str(event.data.get("message", ""))
        self._told = {each for each in self._told if each not in message}
        if event.kind == "snapshot_warning_over":
            return False
        self._told |= {message} - {""}
        warned = frozenset(each for each in self._warned if not message or _NUMBERS.sub("", message) not in each)
        known, self._warned = warned != self._warned, warned
        return known

    def _print_step(self) -> None:
        stats = self._stats
        total = stats.run.steps if stats.run else stats.finished
        words = [f"step {stats.finished}"]
        if total is not None:
            words = [f"step {stats.finished:>{len(str(total))}}/{total}"]
            words.append(percent(stats.finished / total if total else 1.0))
        words += [f"{name} {number(stats.series[name].latest)}" for name in stats.featured()]
        words += [f"{name}/s {number(rate)}" for name, rate in stats.rates().items()]
        left = stats.seconds_left(total, self._now()) if total is not None else None
        if left is not None and total is not None and stats.finished < total:
            words.append(f"{clock(left)} left")
        self._printed_step, self._step_printed = stats.finished, self._now()
        self._say("  ".join(words))


def _console() -> Console:
    console = Terminal(highlight=False)
    # A pipe has no width; rich would take 80 columns, too few for the summary's tables.
    return console if console.is_terminal else Terminal(highlight=False, width=PLAIN_WIDTH)
