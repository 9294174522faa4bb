"""A console for texts of jobs: nothing in them steers the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rolemesh.cli.output import printable

__all__ = ["Terminal", "coloured"]

_KEPT = re.compile("(\x1b\\[[0-9;:]*m|\r)")
"""A colour, or the beginning of the line again, as progress bars have it."""


class Terminal(Console):
    """rich's console. Controls in the texts that it prints become visible; its own colours and movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable`, with printable texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Print nothing more, since the reader has enough, as after ``| head``. The job goes on."""
        self.quiet = True
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def coloured(text: str) -> str:
    """Return text of a log as `printable` does, with its colours and progress bars."""
    return "".join(part if at % 2 else printable(part) for at, part in enumerate(_KEPT.split(text)))
