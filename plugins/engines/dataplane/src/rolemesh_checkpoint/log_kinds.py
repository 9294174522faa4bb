"""The kinds of records in a rank's send log."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RecordKind"]


class RecordKind(IntEnum):
    """The kind of a record in a send log."""

    CHUNK = 0
    """A chunk of a value."""
    END = 1
    """No chunk of the value follows."""
    LINE = 2
    """Lines of metrics, up to a step."""
    PARTIAL = 3
    """The part of a line of metrics that the rank had gathered up to a step."""
    WHOLE = 4
    """The log has all that a call made at a step. The records just before this one are what the call made."""
    DECISION = 5
    """A decision of a step. A restarted rank reads it instead of deciding again."""
