"""The leftovers of a plugin in its process: threads, child processes and files."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil

__all__ = ["files_below", "still_running"]


def still_running() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return threads that would keep this process from ending, and its child processes with their threads."""
    threads = tuple(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    children = psutil.Process().children(recursive=True)
    return threads, tuple(" ".join(child.cmdline()) or child.name() for child in children)


def files_below(folder: str | Path) -> tuple[str, ...]:
    """Return the files and folders below `folder`, relative to it."""
    return tuple(sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")))
