"""``breakpoint()`` in a rank, which has no terminal: the error names a place that has one."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

__all__ = ["explain_breakpoints"]


def explain_breakpoints() -> None:
    """Let ``breakpoint()`` raise an error with a remedy. A debugger that ``PYTHONBREAKPOINT`` names stays in place."""
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _explain


def _explain(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(
        "breakpoint() was reached, and a rank has no terminal: run the job in one process, with `rolemesh run JOB "
        "--engine inline`, or name a debugger that is reached from outside in the role's PYTHONBREAKPOINT "
        "(runtime_env.env_vars; 0 passes over it)"
    )
