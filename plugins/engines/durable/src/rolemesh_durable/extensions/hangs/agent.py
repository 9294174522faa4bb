"""The agent's part of hang detection: py-spy reads the stacks of a rank from outside, even of a stopped one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rolemesh_durable.extensions.hangs.messages import Dump, Stacks
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
from rolemesh_processes.facts import is_stopped

__all__ = ["StackTaker", "take_stacks"]

TIMEOUT_S = 4.0
"""Seconds for both attempts together. The master waits longer."""
MAX_CHARS = 20_000
"""Maximum length of the stacks, which go into the journal and onto a screen."""


def take_stacks(pid: int, timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] | None = None) -> str:
    """Return the Python stacks of all threads of `pid` as text, or the reason why there are none, with a remedy.

    py-spy pauses the process to get a consistent picture. A process that is stopped by a signal, or that cannot be
    paused in half the time, is read as it is. Returns after at most about `timeout_s` seconds, and never raises.
    """
    if pid <= 0:
        return "no stacks: it has no process yet"
    spy = _find()
    if spy is None:
        return "no stacks: py-spy is not installed; pip install py-spy"
    end = time.monotonic() + timeout_s
    stopped = is_stopped(pid)
    said = ""
    for flags in [["--nonblocking"]] if stopped else [[], ["--nonblocking"]]:
        left = max(0.1, end - time.monotonic()) / (1 if flags else 2)
        try:
            done = subprocess.run(
                [spy, "dump", "--pid", str(pid), *flags],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=left,
                env=None if environ is None else {**os.environ, **environ},
            )
        except subprocess.TimeoutExpired:
            said = f"py-spy got no answer in {left:.1f} s"
            continue
        except OSError as error:
            return f"no stacks: py-spy could not be started: {error}"
        if done.returncode == 0:
            note = "(stopped by a signal)\n" if stopped else "(read while it ran)\n" if flags else ""
            return _shortened(note + done.stdout.strip())
        said = _first_lines(done.stderr)
        if "ermission" in said or "not permitted" in said:
            return (
                f"no stacks: {said}; let the agent trace its ranks: run it with the capability SYS_PTRACE "
                "(docker run --cap-add SYS_PTRACE), or set kernel.yama.ptrace_scope to 0"
            )
        if not Path(f"/proc/{pid}").exists():
            return "no stacks: its process has ended"
    return f"no stacks: {said}"


class StackTaker(AgentPart):
    """Takes stacks when the master asks, each in a thread of its own, because an agent must not wait for them."""

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        self._under_way: set[Dump] = set()

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The master's request."""
        return {Dump: self._take}

    def _take(self, request: Dump) -> None:
        """Begin, if the rank has a process. A second request meanwhile does nothing."""
        rank = self._process.machine().ranks.get(request.ref)
        alive = rank is not None and rank.alive and rank.launch.generation == request.generation
        if alive and request not in self._under_way:
            self._under_way.add(request)
            pid = self._process.pid(request.ref)
            threading.Thread(target=self._answer, args=(pid, request), name="stacks", daemon=True).start()

    def _answer(self, pid: int, request: Dump) -> None:
        text = take_stacks(pid, environ=self._process.environ)
        self._under_way.discard(request)
        self._process.send(Stacks(*request.start, text))


def _find() -> str | None:
    """Return py-spy beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _first_lines(error: str) -> str:
    """Return py-spy's message and its causes, without its own stack."""
    lines = error.partition("\nStack backtrace:")[0].splitlines()
    said = [line.strip() for line in lines if line.strip() and line.strip() != "Caused by:"]
    return ": ".join(dict.fromkeys(said)) or "py-spy failed and said nothing"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n… {len(text) - MAX_CHARS} characters more"
