"""Text of unknown origin as HTML, and numbers for readers. Pure."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

__all__ = ["MOST", "clean", "number", "prose", "seconds", "share", "svg", "table"]

MOST = 4000
"""Characters of one text that are shown."""
_CONTROL = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: object, most: int = MOST) -> str:
    """Return `text` for HTML: escaped, without control characters, at most `most` characters long."""
    whole = str(text)
    rest = f" … ({len(whole) - most:,} more characters)" if len(whole) > most else ""
    return html.escape(_CONTROL.sub("\ufffd", whole[:most])) + rest


def prose(text: object, most: int = MOST) -> str:
    """Return `text` as `clean` does, with what stands between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", clean(text, most))


def number(value: float) -> str:
    """Return a value with four digits."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def seconds(value: float | None) -> str:
    """Return a duration; "" for None."""
    if value is None or not math.isfinite(value):
        return ""
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def share(value: float) -> str:
    """Return a share of 0 to 1 in percent."""
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def svg(width: int, height: int, parts: Iterable[str]) -> str:
    """Return a picture that is as wide as the page at most. A large one scrolls on a small screen."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    large = ' class="large"' if width > 640 else ""
    return f'<div class="wide"><svg{large} {size}>{"".join(parts)}</svg></div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """Return a table of cleaned texts. `numbers`: columns that are aligned to the right."""
    kinds = [' class="n"' if at in numbers else "" for at in range(len(heads))]
    head = "".join(f"<th{kind}>{clean(text)}</th>" for kind, text in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{clean(text)}</td>" for kind, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
