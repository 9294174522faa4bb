"""An exception of the user's code, with its place in the job and a traceback without frames of the
kernel."""

from __future__ import annotations

import traceback
from pathlib import Path

from rolemesh import errors
from rolemesh.api.failures import Cause
from rolemesh.errors import RolemeshError
from rolemesh_runtime.breaches import is_breach

MOST_TEXT = 50_000
"""Maximum number of characters of an exception that a failure tells."""
_OURS = tuple(f"{folder}/" for folder in (Path(errors.__file__).parent, Path(__file__).parent))


class OperatorFailed(Exception):
    """Operator `label` raised `error` at `step`; `rank` is -1 if the process has only one rank."""

    def __init__(self, label: str, step: int, error: BaseException, rank: int = -1) -> None:
        super().__init__(f"{label} at step {step}: {summarize(error)}")
        self.label = label
        self.step = step
        self.error = error
        self.rank = rank


def cause_of(error: BaseException) -> Cause:
    """Return "contract" for an error that another attempt would meet again, and else "exception"."""
    return "contract" if is_breach(error) else "exception"


def summarize(error: BaseException) -> str:
    """Return the exception's type and message as Python prints them; for the kernel's own errors
    only the message. Its notes follow, a line each."""
    if isinstance(error, RolemeshError):
        return _text("\n".join((str(error), *getattr(error, "__notes__", ()))))
    lines = "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return _text("\n".join(line.rstrip() for line in lines))


def user_traceback(error: BaseException, engine: str) -> str:
    """Return the traceback as Python prints it, without frames of the kernel, of this package and of
    files in the folder `engine`; empty if no frame is left."""
    formatted = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    todo: list[traceback.TracebackException | None] = [formatted]
    found = False
    while todo:
        part = todo.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        theirs = (frame for frame in part.stack if not frame.filename.startswith((*_OURS, engine)))
        part.stack = traceback.StackSummary.from_list(theirs)
        found = found or bool(part.stack)
        todo += [part.__cause__, part.__context__]
    return _text("".join(formatted.format())) if found else ""


def _text(told: str) -> str:
    """Return `told` with escapes for halves of surrogate pairs; of a longer one than `MOST_TEXT` without its middle."""
    end = MOST_TEXT // 2
    if len(told) > MOST_TEXT:
        told = f"{told[:end]}\n[{len(told) - MOST_TEXT} characters are left out]\n{told[-end:]}"
    return told.encode(errors="backslashreplace").decode()
