"""One stream of text from what several ranks print: whole lines, and lines that grow. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Interleaving", "Piece"]


class Piece(NamedTuple):
    """Text that a rank printed, without a newline in it. `ends`: a newline follows."""

    text: str
    ends: bool


class Interleaving:
    """Places pieces after each other. A line that is not finished stays open until its newline, or another's text.

    Text that begins with a carriage return rewrites the line that is open, as on a terminal.
    """

    def __init__(self) -> None:
        self._open = ""
        """Name of the rank whose line is unfinished; "" if there is none."""
        self._cut: set[str] = set()
        """Names of ranks whose unfinished lines were cut off by output of others."""

    def add(self, who: str, prefix: str, piece: Piece) -> str:
        """What to print for `piece` of `who`. `prefix` begins each line, also one that a carriage return rewrites."""
        cut, again = who in self._cut, piece.text.startswith("\r")
        self._cut.discard(who)
        if cut and piece == ("", True):
            return ""  # the line that it ends is over
        before = ""
        if self._open != who:
            before = "" if again else self.close() + prefix
            self._cut |= {self._open} - {""}
        self._open = "" if piece.ends else who
        return before + piece.text.replace("\r", f"\r{prefix}") + "\n" * piece.ends

    def close(self) -> str:
        """What to print before text of somebody else."""
        cut = {self._open} - {""}
        self._open, self._cut = "", self._cut | cut
        return "\n" * bool(cut)
