"""Rows of a file: JSON lines, a JSON list, CSV, Parquet, or a folder that Hugging Face's `datasets` has saved."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.errors import OptionsError, nearest
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_files.columns import BEYOND, listed, shortened

__all__ = ["read_rows", "read_text"]

Row = dict[str, Any]


def read_rows(path: Path, split: str | None = None, most: int | None = None) -> list[Row]:
    """Return the rows of a file or folder, at most `most`. `split`: that of a saved dataset which has several.

    Raises `OptionsError` with the line or row that cannot be read.
    """
    if path.is_dir():
        rows = _saved(path, split)
    elif (read := _READERS.get(path.suffix.lower())) is None:
        known = f"{', '.join(_READERS)}, or a folder of datasets' save_to_disk"
        raise OptionsError(f"{path} has an unknown format", where="data", remedy=f"give a file of these: {known}")
    else:
        rows = read(path)
    with _named(path):
        return list(islice(rows, most))


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, without a mark at its start. Raises `OptionsError` if it cannot be read."""
    with _named(path):
        return path.read_text(encoding="utf-8-sig")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise `OptionsError` with the path for a file that cannot be read."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"byte {error.start} is not UTF-8", "save the file as UTF-8") from error
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "name a file that can be read") from error


def _unreadable(path: Path, why: str, remedy: str) -> OptionsError:
    return OptionsError(f"{path} cannot be read: {why}", where="data", remedy=remedy)


def _json(path: Path) -> Iterator[Row]:
    """Yield the objects of JSON lines, or of a list."""
    with path.open("rb") as file:
        head = file.read(1 << 16).lstrip(b"\xef\xbb\xbf \t\r\n")
        file.seek(0)
        if head.startswith(b"["):
            yield from _objects(path, file.read().lstrip(b"\xef\xbb\xbf"))
            return
        for number, line in enumerate(file, 1):
            if text := line.strip().lstrip(b"\xef\xbb\xbf"):
                try:
                    yield msgspec.json.decode(text, type=Row)
                except UNDECODABLE as error:
                    raise _unreadable(path, f"line {number} is no JSON object: {error}", "correct the line") from error


def _objects(path: Path, text: bytes) -> list[Row]:
    try:
        return msgspec.json.decode(text, type=list[Row])
    except UNDECODABLE as error:
        raise _unreadable(path, f"it is no list of JSON objects: {error}", "correct the file") from error


def _csv(path: Path) -> Iterator[Row]:
    """Yield the lines of a CSV file whose first line names the columns. All values are texts."""
    csv.field_size_limit(sys.maxsize)  # a prompt may be a document
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            columns = next(lines, [])
            if twice := next((name for name in columns if columns.count(name) > 1), None):
                raise _unreadable(path, f"two columns have the name {twice!r}", "rename one of them")
            for values in lines:
                if values and len(values) != len(columns):
                    what = f"line {lines.line_num} has {len(values)} values for {len(columns)} columns"
                    raise _unreadable(path, what, "correct the line; put values with commas or quotes into quotes")
                if values:
                    yield dict(zip(columns, values, strict=True))
        except csv.Error as error:
            raise _unreadable(path, f"line {lines.line_num}: {error}", "correct the line") from error


def _parquet(path: Path) -> Iterator[Row]:
    arrow = _arrow(path)
    try:
        for batch in arrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us").iter_batches():
            yield from _rows(path, batch)
    except arrow.ArrowException as error:
        raise _unreadable(path, str(error), "write the file again") from error


def _rows(path: Path, batch: Any) -> list[Row]:
    """Return the rows of an Arrow batch."""
    try:
        return listed(shortened(batch))
    except BEYOND as error:
        remedy = "leave the column out, or write its values as text"
        raise _unreadable(path, f"a value is none of Python: {error}", remedy) from error


def _saved(folder: Path, split: str | None) -> Iterator[Row]:
    """Yield the rows of a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` has written."""
    if (splits := _facts(folder, "dataset_dict.json")) is not None:
        names = splits["splits"]
        if split is None and len(names) > 1:
            what = f"{folder} has several splits: {', '.join(names)}"
            raise OptionsError(what, where="data", remedy=f"choose one, such as `split: {names[0]}`")
        if split not in (None, *names):
            raise OptionsError(f"{folder} has no split {split!r}", where="split", remedy=nearest(str(split), names))
        folder = folder / (split or names[0])
    state = _facts(folder, "state.json")
    if state is None:
        remedy = "name a file, or save the dataset with save_to_disk"
        raise _unreadable(folder, "this folder is no saved dataset: it has no state.json", remedy)
    arrow = _arrow(folder)
    try:
        for file in state["_data_files"]:
            with arrow.memory_map(str(folder / Path(file["filename"]).name)) as source:
                for batch in arrow.ipc.open_stream(source):
                    yield from _rows(folder, batch)
    except arrow.ArrowException as error:
        raise _unreadable(folder, str(error), "save the dataset again") from error


def _facts(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise _unreadable(folder / name, str(error), "save the dataset again") from error


def _arrow(path: Path) -> Any:
    try:
        for part in ("ipc", "parquet"):
            importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise _unreadable(path, "pyarrow is not installed", "pip install 'rolemesh-rewards[arrow]'") from error
    return sys.modules["pyarrow"]


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
