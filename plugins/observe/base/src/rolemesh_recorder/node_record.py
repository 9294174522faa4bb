"""The recorder in an agent: a thread that notes what the node does."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rolemesh_durable.api.extensions import AgentPart, AgentProcess
from rolemesh_recorder.node_counters import Meter
from rolemesh_recorder.usage import Usage, decode_usage, joined, node_file

__all__ = ["NodeFile", "NodeRecord"]

LOG = logging.getLogger(__name__)
PERIOD_S = 2.0
"""Seconds between two lines."""
MOST_WAITING = 1000
"""Lines that wait while the disk does not take any; with more, neighbours become one."""


class NodeRecord(AgentPart):
    """Records what the node does, from the agent's start to its end."""

    def __init__(self, process: AgentProcess, max_bytes: int) -> None:
        super().__init__(process)
        config = process.config
        self._file = NodeFile(node_file(Path(config.job.run_dir), config.node), max_bytes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left. The disk gets a second for it."""
        self._over.set()
        self._thread.join(1.0)

    def _work(self) -> None:
        failing = over = False
        meter: Meter | None = None
        while True:
            try:
                if meter is None:
                    meter = Meter()
                else:
                    self._file.append(meter.next())
                    if failing:
                        LOG.warning("what this node does is recorded again")
                    failing = False
            except (OSError, ValueError) as error:
                if not failing:
                    LOG.warning("what this node does cannot be recorded: %s; the recorder tries again", error)
                failing = True
            if over:
                return
            over = self._over.wait(PERIOD_S)


class NodeFile:
    """Appends lines to a node's file, and joins them when it is full."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._limit = path, max_bytes
        self._waiting: list[Usage] = []

    def append(self, line: Usage) -> None:
        """Write a line, and those that wait. Raises `OSError`; then the file is as before, and all of them wait."""
        self._waiting.append(line)
        if len(self._waiting) > MOST_WAITING:
            self._waiting = [*joined(self._waiting)]
        self._write(self._waiting)
        self._waiting = []

    def _write(self, lines: Sequence[Usage]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o644)
        with open(fd, "r+b", buffering=0) as file:
            size, data = os.fstat(fd).st_size, _encoded(lines)
            if size + len(data) > self._limit:
                known = [each for raw in file.read().splitlines() if (each := decode_usage(raw)) is not None]
                new = self._path.with_suffix(".new")
                try:
                    new.write_bytes(_encoded(joined([*known, *lines])))
                    new.replace(self._path)
                except OSError:
                    new.unlink(missing_ok=True)
                    raise
                return
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(size)
                raise


def _encoded(lines: Iterable[Usage]) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
