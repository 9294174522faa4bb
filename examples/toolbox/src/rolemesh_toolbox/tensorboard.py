"""The observer `event-file`: it writes metrics as scalars into an event file of TensorBoard, without another package.

An event file is a sequence of records (TFRecord): length, masked CRC of the length, data, masked CRC of the data. The
data is a ``tensorflow.Event`` as protocol buffers write it (tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, Field
from rolemesh import Observer, RunInfo, StepMetrics, hookimpl

__all__ = ["TensorBoard", "event", "record"]

POLYNOMIAL = 0x82F63B78
"""Table of CRC-32C (Castagnoli), reflected."""


class TensorBoardOptions(BaseModel, extra="forbid"):
    """Options of the `event-file` observer."""

    folder: str = Field(default="tensorboard", pattern=r"^[^/]+$", description="A folder in the run's folder.")
    metrics: list[str] = Field(default_factory=list, description="Metrics to write; by default all of them.")


class TensorBoard(Observer):
    """Writes each finite metric of each step as a scalar. ``tensorboard --logdir runs`` shows all runs.

    A restarted master starts another event file in the folder. TensorBoard reads them in the order of their names.
    """

    Options = TensorBoardOptions
    options: TensorBoardOptions
    api_version = 1
    side = "master"
    path: Path | None = None

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Start a file."""
        folder = Path(run.run_dir, self.options.folder)
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        self.path = folder / f"events.out.tfevents.{int(time.time()):010d}.{number:04d}.rolemesh"
        self._append([event(time.time(), version="brain.Event:2")])

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        """Append the scalars of these steps."""
        self._append(
            event(line.time, line.step, name, float(value))
            for line in metrics
            for name, value in line.values.items()
            if name in (self.options.metrics or line.values) and _is_finite(value)
        )

    def _append(self, events: Iterable[bytes]) -> None:
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(b"".join(map(record, events)))


def event(at: float, step: int = 0, tag: str = "", value: float = 0.0, *, version: str = "") -> bytes:
    """Return an event at the time `at`: the start of a file with `version`, or else the scalar `tag` at `step`."""
    head = _field(1, 1, struct.pack("<d", at)) + _field(2, 0, _varint(step))
    if version:
        return head + _text(3, version.encode())
    scalar = _text(1, tag.encode()) + _field(2, 5, struct.pack("<f", value))
    return head + _text(5, _text(1, scalar))


def record(data: bytes) -> bytes:
    """Return the record of `data`."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _field(number: int, kind: int, data: bytes) -> bytes:
    return _varint(number << 3 | kind) + data


def _text(number: int, data: bytes) -> bytes:
    return _field(number, 2, _varint(len(data)) + data)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 3e38 and math.isfinite(value)
