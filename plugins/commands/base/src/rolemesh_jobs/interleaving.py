"""Merge the output of several ranks into one stream, with whole lines and growing lines. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Interleaving", "Piece"]


class Piece(NamedTuple):
    """Text of a rank without newlines. `ends`: a newline follows."""

    text: str
    ends: bool


class Interleaving:
    """Merges pieces of text. An unfinished line stays open until its newline, or until another rank prints.

    Text that begins with a carriage return rewrites the open line, as on a terminal.
    """

    def __init__(self) -> None:
        self._open = ""
        """Name of the rank whose line is unfinished; "" if there is none."""
        self._cut: set[str] = set()
        """Names of ranks whose unfinished lines were cut off by output of others."""

    def add(self, who: str, prefix: str, piece: Piece) -> str:
        """Return the text to print for `piece` of rank `who`. `prefix` begins each line, also one that a carriage
        return rewrites."""
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
        """Return the text that ends an open line before other output."""
        cut = {self._open} - {""}
        self._open, self._cut = "", self._cut | cut
        return "\n" * bool(cut)
