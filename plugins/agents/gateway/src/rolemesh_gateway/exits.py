"""The meaning of a program's exit status: right, wrong, or a failure that is not the model's. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, TypeAlias

__all__ = ["Meaning", "meaning", "uncaught"]

Meaning: TypeAlias = Literal["right", "wrong", "failed"]
_UNCAUGHT = re.compile(r'Traceback \(most recent call last\):|^Exception in thread "|^Node\.js v\d', re.MULTILINE)
"""Last words of Python, Java and Node after an exception that no code of the program has caught."""
_ASSERTED = re.compile(r"^(\w+\.)*(AssertionError|AssertionFailedError)\b", re.MULTILINE)


def meaning(code: int | None, errors: str, wrong: Collection[int]) -> Meaning:
    """Return what exit status `code` says of the model's work.

    0 is right. A status in `wrong` is wrong, unless stderr ends with an uncaught exception. Everything else is a
    failure: a signal (negative; 128 + n in shells), a program that could not start (126, 127), and every other status.
    None: the program did not end by itself.
    """
    if code == 0:
        return "right"
    return "wrong" if code in wrong and not uncaught(errors) else "failed"


def uncaught(errors: str) -> bool:
    """Return whether stderr ends with the report of an uncaught exception.

    Only the last paragraph counts: a program that logs an exception and then goes on has written something else after
    it. A failed assertion is a judgement, and no such exception.
    """
    last = re.split(r"\n\s*\n", errors.strip())[-1]
    return bool(_UNCAUGHT.search(last)) and not _ASSERTED.search(last)
