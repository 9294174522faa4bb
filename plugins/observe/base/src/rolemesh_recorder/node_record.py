"""The recorder in an agent: a thread that notes what the node does."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec

from rolemesh_durable.api.extensions import AgentPart, AgentProcess
from rolemesh_recorder.node_counters import Meter
from rolemesh_recorder.usage import Usage, decode_usage, joined, node_file

__all__ = ["NodeFile", "NodeRecord"]

LOG = logging.getLogger(__name__)
PERIOD_S = 2.0
"""Seconds between two lines."""


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

    def append(self, line: Usage) -> None:
        """Write a line. Raises `OSError`; then the file is as before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o644)
        with open(fd, "r+b", buffering=0) as file:
            size, data = os.fstat(fd).st_size, msgspec.json.encode(line) + b"\n"
            if size + len(data) > self._limit:
                lines = [each for raw in file.read().splitlines() if (each := decode_usage(raw)) is not None]
                data = b"".join(msgspec.json.encode(each) + b"\n" for each in joined([*lines, line]))
                new = self._path.with_suffix(".new")
                new.write_bytes(data)
                new.replace(self._path)
                return
            try:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(size)
                raise
