"""Texts from runs as a page shows them: nothing in them is invisible, and none is too long. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

__all__ = ["clock", "duration", "number", "percent", "progress", "prose", "rate", "shown"]

MOST = 20_000
"""Characters of one text that a page shows."""
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def shown(value: Any, most: int = MOST) -> str:
    """Return `value` as a text of about `most` characters at most. Invisible characters become visible."""
    text = value if isinstance(value, str) else repr(value) if isinstance(value, list | dict) else str(value)
    rest = len(text) - most
    text = _HIDDEN.sub(lambda found: _visible(found[0]), text[:most])
    return f"{text} … {rest:,} more characters" if rest > 0 else text


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def prose(value: Any, most: int = MOST) -> Markup:
    """Return `value` as `shown` does, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(shown(value, most)))))


def duration(seconds: float | None) -> str:
    """Return a duration with its unit; "" for None, and for less than 0, as after a step of the clock."""
    if seconds is None or seconds < 0:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def clock(seconds: float) -> str:
    """Return a time in seconds since 1970 as text, in UTC; "" for 0 and for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


def percent(share: float | None) -> str:
    """Return a share as text; "" for None."""
    if share is None:
        return ""
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def progress(step: int, steps: int | None) -> str:
    """Return how many of the steps have ended, if `step` is the last one that has; -1 for none."""
    done = step + 1
    if steps is not None:
        return f"{done:,} of {steps:,} steps"
    return f"{done:,} step{'s' * (done != 1)}" if done else "no step yet"


def rate(steps_s: float) -> str:
    """Return steps per second as text, or the duration of a step if it is longer than a second; "" for 0."""
    if steps_s <= 0:
        return ""
    return f"{steps_s:.3g} steps/s" if steps_s >= 1 else f"{duration(1 / steps_s)} per step"


def number(value: Any) -> str:
    """Return a number with four digits, anything else as text."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value, 200)
