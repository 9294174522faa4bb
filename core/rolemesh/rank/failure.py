"""An exception of the user's code, with its place in the job and a traceback without the kernel's frames."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["OperatorFailed", "user_traceback"]

_KERNEL = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "builtin" / "function.py"))


class OperatorFailed(Exception):
    """Operator `label` raised `error` at `step`."""

    def __init__(self, label: str, step: int, error: BaseException) -> None:
        super().__init__(f"{label} at step {step}: {describe(error)}")
        self.label = label
        self.step = step
        self.error = error


def describe(error: BaseException) -> str:
    """The exception's type and message in one line."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


def user_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of the rank's loop; whole where nothing else is left."""
    formatted = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    todo: list[traceback.TracebackException | None] = [formatted]
    while todo:
        part = todo.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        frames = [frame for frame in part.stack if not frame.filename.startswith(_KERNEL)]
        if frames:
            part.stack = traceback.StackSummary.from_list(frames)
        todo += [part.__cause__, part.__context__]
    return "".join(formatted.format())
