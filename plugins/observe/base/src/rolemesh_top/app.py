"""The screen of `rolemesh top`. A thread makes frames, so a slow disk or master does not stop the keys."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from rolemesh.errors import RolemeshError
from rolemesh_facts.waiting import answered
from rolemesh_top.frame import Frame, FrameSource, RankLine
from rolemesh_top.text import EDGE_HEADS, RANK_HEADS, fitted_edges, fitted_ranks, header, metrics_table, path_text

__all__ = ["TopApp", "chosen"]

WINDOWS = (10.0, 60.0, 600.0, 86_400.0)
"""Seconds that the key w goes through."""
FIELDS = ("rank", "node", "pid", "state", "step", "computing", "waiting", "rest", "most", "restarts", "phase")
"""The field of `RankLine` under each head."""
_RANK = 0
SCROLLBAR = 4
"""Characters beside the cells of a table: the scroll bar, and the blanks at both ends."""


def chosen(ranks: Sequence[RankLine], column: int, reverse: bool, words: str) -> list[RankLine]:
    """Return the ranks in which all `words` occur, by a column of `RANK_HEADS`. Ranks are by role and number."""

    def key(line: RankLine) -> tuple[object, ...]:
        role, _, number = line.rank.rpartition("/")
        own = (role, int(number) if number.isdigit() else 0)
        return own if column == _RANK else (getattr(line, FIELDS[column]), *own)

    wanted = words.lower().split()
    found = [
        line
        for line in ranks
        if all(word in " ".join(map(str, msgspec.structs.astuple(line))).lower() for word in wanted)
    ]
    return sorted(found, key=key, reverse=reverse)


class TopApp(App[None]):
    """Shows frames of one run until q."""

    CSS = """
    #head { height: auto; padding: 0 1; }
    #metrics { height: auto; max-height: 20%; padding: 0 1; }
    #filter { display: none; }
    #ranks { height: 2fr; }
    #below { height: 1fr; }
    #edges { width: 2fr; }
    #path { width: 1fr; padding: 0 1; }
    #news { height: 1fr; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10", "quit", "quit"),
        Binding("s,f6", "sort", "sort"),
        Binding("r", "turn", "reverse"),
        Binding("f,slash,f4", "filter", "filter"),
        Binding("w", "window", "window"),
        Binding("p,space", "pause", "pause"),
        Binding("question_mark,f1", "help", "help"),
        Binding("escape", "leave", "leave the filter", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, source: FrameSource, window_s: float, every_s: float) -> None:
        super().__init__()
        self.source, self.window_s, self.every_s = source, window_s, every_s
        self.latest: Frame | None = None
        self.column, self.turned, self.words, self.paused = _RANK, False, "", False
        self._free = threading.Lock()
        """Held while a frame is made, by the look that has it made."""
        self.shown: Sequence[int] = range(len(RANK_HEADS))
        """Numbers of the columns for which the terminal has room."""

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(id="head")
        yield Static(id="metrics")
        yield Input(placeholder="words that a rank's line has", id="filter")
        yield DataTable(id="ranks", cursor_type="row", zebra_stripes=True)
        with Horizontal(id="below"):
            yield DataTable(id="edges", cursor_type="none")
            with VerticalScroll(id="path"):
                yield Static(id="stations")
        with VerticalScroll(id="news"):
            yield Static(id="events")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look at the run."""
        self.query_one("#ranks", DataTable).focus()
        self.look()
        self.set_interval(self.every_s, self.look_again)

    def look_again(self) -> None:
        """Look at the run, unless the user has paused."""
        if not self.paused:
            self.look()

    @work(thread=True, group="look")
    def look(self) -> None:
        """Make a frame in a thread, unless the one before is not ready: its store may not answer."""
        if not self._free.acquire(blocking=False):
            return
        worker, window_s = get_current_worker(), self.window_s

        def frame() -> Frame:
            try:
                return self.source.frame(window_s)
            finally:
                self._free.release()

        try:
            found = answered(self.source.run_dir, frame, quiet=True, over=lambda: worker.is_cancelled)
        except (RolemeshError, OSError) as error:
            if not worker.is_cancelled:
                self.call_from_thread(self.notify, str(error), severity="warning", markup=False, timeout=60)
            return
        self.call_from_thread(self.show, found)

    def show(self, frame: Frame) -> None:
        """Show a frame."""
        self.latest = frame
        self.query_one("#head", Static).update(header(frame))
        self.query_one("#metrics", Static).update(metrics_table(frame))
        self.query_one("#stations", Static).update(Text.assemble(("critical path\n", "dim"), path_text(frame)))
        self.query_one("#events", Static).update(Text("\n".join(reversed(frame.events))))
        edges, found = self.query_one("#edges", DataTable), fitted_edges(frame.edges, self._room("#edges"))
        edges.clear(columns=True)
        edges.add_columns(*(EDGE_HEADS[at] for at in found.columns))
        edges.add_rows(found.rows)
        self._show_ranks(frame)

    def _room(self, table: str) -> int:
        """Return the characters that a line of a table has, without the blanks that the table puts around cells."""
        return self.query_one(table).size.width - SCROLLBAR

    def on_resize(self) -> None:
        """Fit the tables to the new size."""
        if self.latest is not None:
            self.call_after_refresh(self.show, self.latest)

    def _show_ranks(self, frame: Frame) -> None:
        table = self.query_one("#ranks", DataTable)
        row = table.cursor_row
        table.clear(columns=True)
        arrow = " ▼" if self.turned else " ▲"
        ranks = chosen(frame.ranks, self.column, self.turned, self.words)
        found = fitted_ranks(ranks, self._room("#ranks"))
        self.shown = found.columns
        table.add_columns(*(RANK_HEADS[at] + arrow * (at == self.column) for at in self.shown))
        table.add_rows(found.rows)
        table.move_cursor(row=min(row, max(0, table.row_count - 1)))

    def _again(self) -> None:
        if self.latest is not None:
            self._show_ranks(self.latest)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self.words = event.value
        self._again()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the table."""
        self.query_one("#ranks", DataTable).focus()

    def action_sort(self) -> None:
        """Sort by the next column. Numbers begin with the largest."""
        self.column = next((at for at in self.shown if at > self.column), _RANK)
        self.turned = FIELDS[self.column] in ("pid", "step", "computing", "waiting", "rest", "restarts")
        self._again()

    def action_turn(self) -> None:
        """Reverse the order."""
        self.turned = not self.turned
        self._again()

    def action_filter(self) -> None:
        """Show the filter."""
        filter_ = self.query_one("#filter", Input)
        filter_.display = True
        filter_.focus()

    def action_leave(self) -> None:
        """Remove the filter."""
        filter_ = self.query_one("#filter", Input)
        filter_.value, filter_.display = "", False
        self.query_one("#ranks", DataTable).focus()

    def action_window(self) -> None:
        """Take the next window."""
        ways = [*pairwise(WINDOWS), (WINDOWS[-1], WINDOWS[0])]
        self.window_s = next((after for before, after in ways if before >= self.window_s), WINDOWS[0])
        self.look()

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self.paused = not self.paused
        self.notify("paused" if self.paused else "goes on")

    def action_help(self) -> None:
        """Show the keys."""
        self.notify(
            "s: sort by the next column   r: reverse   f or /: filter, Escape removes it\n"
            "w: window (10 s, 1 min, 10 min, all)   p: pause   Tab: next table   q: quit",
            title="keys",
            timeout=15,
        )
