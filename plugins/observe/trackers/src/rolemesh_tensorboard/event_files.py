"""Write event files with TensorBoard's own records and messages. Importing this module imports TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

__all__ = ["append", "begin", "described", "scalars", "text"]


def append(path: Path, events: Iterable[Event]) -> None:
    """Append events to a file. Raises OSError."""
    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def begin(path: Path, step: int) -> None:
    """Begin a file whose first step is `step`. TensorBoard drops later steps of earlier files in the folder."""
    now = time.time()
    start = SessionLog(status=SessionLog.START)
    append(
        path, [Event(wall_time=now, file_version="brain.Event:2"), Event(wall_time=now, step=step, session_log=start)]
    )


def described(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Append a table of the configuration."""
    rows = "\n".join(f"| {key} | {str(value).replace('|', '&#124;')} |" for key, value in values.items())
    append(path, [text(time.time(), 0, "job file", f"**{name}**\n\n| key | value |\n| --- | --- |\n{rows}")])


def scalars(at: float, step: int, values: Mapping[str, float]) -> Event:
    """Return the values of a step, finite or NaN. TensorBoard keeps four bytes of each."""
    found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(wall_time=at, step=step, summary=Summary(value=found))


def text(at: float, step: int, tag: str, markdown: str) -> Event:
    """Return a text, which TensorBoard shows as Markdown without HTML."""
    encoded = markdown.encode("utf-8", "replace")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[encoded], tensor_shape=shape)
    metadata = create_summary_metadata(display_name=tag, description="")
    value = Summary.Value(tag=f"{tag}/text_summary", tensor=tensor, metadata=metadata)
    return Event(wall_time=at, step=step, summary=Summary(value=[value]))
