"""The errors of an episode as plain values: they come from a process that a model's text may have changed. Pure."""

from __future__ import annotations

import errno
import traceback
from typing import Final

import msgspec

from rolemesh.errors import RolemeshError
from rolemesh_agents.contract import breach, is_breach, raised_at
from rolemesh_agents.episodes.worker import LateError
from rolemesh_agents.errors import SandboxLostError

__all__ = ["SHORTAGES", "EpisodeRaisedError", "PlainError", "as_error", "as_plain"]

SHORTAGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Numbers of the errors with which a machine refuses what an episode needs. They may pass."""
_CLOSED: Final = (
    " (an episode that has begun changes files below tempfile.gettempdir() only, unless its class has writes = True)"
)
_LONGEST: Final = 20_000
"""Number of characters of a text of an error that are kept."""


class EpisodeRaisedError(Exception):
    """An episode has raised an exception, or its process has ended. The text says so. `at`: its place; "" if the text
    says what to do. `story`: its traceback."""

    def __init__(self, text: str, at: str, story: str) -> None:
        super().__init__(text)
        self.at, self.story = at, story


class PlainError(msgspec.Struct, frozen=True):
    """An error. `kind`: late, lost, breach, short (with its number), or other."""

    kind: str
    text: str
    remedy: str | None = None
    number: int = 0
    at: str = ""
    story: str = ""


def as_plain(error: BaseException) -> PlainError:
    """Return an error as a value."""
    if isinstance(error, LateError):
        return PlainError("late", str(error))
    if isinstance(error, SandboxLostError):
        return PlainError("lost", error.what, error.remedy)
    if isinstance(error, Exception) and is_breach(error):
        return PlainError("breach", error.what, error.remedy)
    text = f"{type(error).__name__}: {_text(error)}"[:_LONGEST]
    if isinstance(error, PermissionError):
        text += _CLOSED
    story = "".join(traceback.format_exception(error))[-_LONGEST:]
    at = "" if isinstance(error, RolemeshError) else raised_at(error)
    if isinstance(error, OSError) and error.errno in SHORTAGES:
        return PlainError("short", text, number=error.errno)
    return PlainError("other", text, at=at, story=story)


def as_error(plain: PlainError) -> Exception:
    """Return a value as the error that it was, or as an `EpisodeRaisedError`."""
    if plain.kind == "late":
        return LateError(plain.text)
    if plain.kind == "lost":
        return SandboxLostError(plain.text, remedy=plain.remedy)
    if plain.kind == "breach":
        return breach(plain.text, remedy=plain.remedy)
    if plain.kind == "short" and plain.number in SHORTAGES:
        return OSError(plain.number, plain.text.partition("] ")[2])
    return EpisodeRaisedError(f"the episode raised {plain.text}", plain.at, plain.story)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be read)"
