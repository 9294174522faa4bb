"""A plugin that does not come back: each test has a time limit, and one that has hung often is not asked again."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

__all__ = ["HANGS", "IMPORT_S", "Hung", "fresh_python", "has_hung", "limit_of"]

HANGS = 3
"""After so many tests of a class that have hung, its others fail at once: each would take as long."""
IMPORT_S = 60.0
"""The limit of an import in seconds, which is to take well under one."""


class Hung(AssertionError):
    """What was asked of the plugin has not ended in time."""


def has_hung(error: BaseException) -> bool:
    """Whether a test failed because something did not end: the kit says so, or pytest-timeout."""
    return isinstance(error, Hung) or str(error).startswith("Timeout (>")


def fresh_python(code: str, limit_s: float = IMPORT_S) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh process with this one's import path. Raises `Hung` if it does not end."""
    start = f"import sys; sys.path[:] = {[*filter(None, sys.path)]!r}; "
    command = [sys.executable, "-c", start + code]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise Hung(f"a fresh process does not end within {limit_s:g} s: {code}") from None


def limit_of(cls: Any) -> float:
    """The limit of a standard test of the class `cls` in seconds: what three answers may take."""
    return float(3 * cls.timeout_s)
