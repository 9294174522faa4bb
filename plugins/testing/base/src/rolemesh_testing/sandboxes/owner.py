"""A process that owns a sandbox, for tests that kill it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rolemesh_testing.hanging import Hung

__all__ = ["Owner", "gone", "marked", "own", "seen"]

_MAIN = "import sys; sys.path[:] = {path!r}; from rolemesh_testing.sandboxes.owner import own; own(sys.argv[1])"


class Owner:
    """A process that opens a sandbox, and runs a command or a cell in it until somebody kills it."""

    def __init__(self, target: str, options: Mapping[str, Any], folder: Path, limits: Mapping[str, Any]) -> None:
        self._told = {"target": target, "options": dict(options), "folder": str(folder), "limits": dict(limits)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, method: str, argument: Any) -> None:
        """Start the process, which calls `method` of the sandbox."""
        told = json.dumps({**self._told, "method": method, "argument": argument})
        command = [sys.executable, "-c", _MAIN.format(path=[*filter(None, sys.path)]), told]
        self._process = subprocess.Popen(command)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def own(told: str) -> None:
    """Be the process."""
    from importlib import import_module

    from rolemesh_agents import Limits

    asked = json.loads(told)
    module, _, name = asked["target"].partition(":")
    cls = getattr(import_module(module), name)
    sandbox = cls(cls.Options.model_validate(asked["options"]))
    sandbox.open(Path(asked["folder"]), Limits(**asked["limits"]))
    getattr(sandbox, asked["method"])(asked["argument"])


def marked(mark: str) -> list[psutil.Process]:
    """Return the running processes with `mark` as one of their arguments."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def gone(mark: str, limit_s: float) -> bool:
    """Wait until no process has the mark. Return false at the limit, in seconds."""
    return _within(limit_s, lambda: not marked(mark))


def seen(mark: str, limit_s: float) -> None:
    """Wait until a process has the mark. Raises `Hung` at the limit, in seconds."""
    if not _within(limit_s, lambda: bool(marked(mark))):
        raise Hung(f"the command does not run within {limit_s:g} s")


def _within(limit_s: float, holds: Any) -> bool:
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
