"""Finds files that a plugin writes outside of its own folders."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Guard"]

CACHES = ("~/.cache", "~/.config", "/dev", "/proc")
"""Folders in which every process may write."""

IMPORTING = "<frozen importlib._bootstrap>"
"""File name of the frame that executes an imported module."""


class Guard:
    """An audit hook that records every path outside of `inside` that is written, made, renamed or removed.

    It ignores temporary files that the import of another package writes. It adds the paths to `wrote`.
    """

    _EVENTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate")

    def __init__(self, inside: Sequence[Path], target: str, wrote: list[str]) -> None:
        """`target` is the plugin, as ``module:Class``."""
        self._allowed = tuple(Path(os.path.expanduser(path)).resolve() for path in (*map(str, inside), *CACHES))
        # Asked for the first time in a process, `tempfile` tries the folder out by writing to it.
        self._temporary = Path(tempfile.gettempdir()).resolve()
        self._package, self._wrote = target.partition(":")[0].partition(".")[0], wrote

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = (
                any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & 3 or flags & os.O_CREAT
            )
            paths = [path] if writes and isinstance(path, (str, bytes, os.PathLike)) else []
        elif event in self._EVENTS:
            paths = [path for path in arguments[:2] if isinstance(path, (str, bytes, os.PathLike))]
        else:
            return
        for path in map(os.fsdecode, paths):
            whole = Path(os.path.abspath(path))
            if any(whole.is_relative_to(allowed) for allowed in self._allowed):
                continue
            if not (whole.is_relative_to(self._temporary) and self._imports_another()):
                self._wrote.append(str(whole))

    def _imports_another(self) -> bool:
        """True if the module that this thread currently imports belongs to another package than the plugin."""
        frame = sys._getframe(2)
        while frame is not None:
            above = frame.f_back
            # `exec` runs modules too: the host of an execution (pytest-xdist's worker) is one that nobody imported.
            if frame.f_code.co_name == "<module>" and above and above.f_code.co_filename == IMPORTING:
                return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in (self._package, "__main__")
            frame = above  # type: ignore[assignment]
        return False
