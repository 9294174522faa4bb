"""The kinds of records in a rank's send log."""

from __future__ import annotations

from typing import Final

__all__ = ["ANSWERED", "ASKED", "CHOICE", "CHUNK", "END", "LINE", "NOTE", "PARTIAL", "TAKEN", "WHOLE"]

CHUNK: Final = 0
"""A chunk of a value."""
END: Final = 1
"""No chunk of the value follows."""
LINE: Final = 2
"""Lines of metrics, up to `step`."""
PARTIAL: Final = 3
"""The part of a line of metrics that the rank had gathered up to `step`."""
CHOICE: Final = 4
"""`chunk` is the age of the value that a call took at `step` from an edge of which it takes the newest."""
ASKED: Final = 5
"""`chunk` is the rank to which the call with the key `body` went."""
ANSWERED: Final = 6
"""`body` is the key of a call from another role, with the answer behind it."""
TAKEN: Final = 7
"""`body` names the items that a call took at `step` from an edge of which it takes those that are finished first."""
WHOLE: Final = 8
"""The last `chunk` records before this one are all that call `edge` made at `step`; `body` names its items, if any."""
NOTE: Final = 9
"""`body` is what an operator noted at `step`."""
