"""A share of the rows that operators return or take, as JSON lines beside the record.

``record/rows/ROLE-RANK/N.jsonl`` has one object per row: ``step``, ``op`` (the label), ``row`` (its number
in the rank's batch) and ``columns``. The newest files stay, up to a size.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from rolemesh import Batch
from rolemesh.graph.logical import OpCall
from rolemesh_recorder.lines import RECORD_DIR

__all__ = ["ROWS_DIR", "KeptRows", "Row", "Sampling", "rows_folder"]

LOG = logging.getLogger(__name__)
ROWS_DIR = "rows"
ITEM = ("number", "items", "first", "total", "rows")
"""Parts of what an operator with a balanced input yields for each item: see `rolemesh_runtime.items.Items.one`."""
FILES = 4
"""Number of files among which the size is divided."""
MOST_VALUES = 100_000
"""Maximum number of values of a column in a row; the rest is cut off, and the row says so."""
MOST_WAITING = 1000
"""Rows that wait while the disk does not take any; the oldest ones are dropped first."""
MOST_TEXT = 1_000_000
"""Maximum number of characters of a text, or of bytes."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kept row. `cut` names the columns of which only the beginning is here."""

    step: int
    op: str
    row: int
    columns: dict[str, Any]
    cut: tuple[str, ...] = ()


Keep = Callable[[Row], None]


class Sampling:
    """Chooses rows by a hash of step, operator and number: a repeated step keeps the same ones.

    In a batch with the column `group`, the group takes the place of the number, so that the rows of a group stay
    together.
    """

    def __init__(self, share: str) -> None:
        self._share = Fraction(share)

    def around(self, op: OpCall, method: Callable[..., Any], step: Callable[[], int], keep: Keep) -> Callable[..., Any]:
        """Return `method`, which also gives its rows to `keep`: those that it returns, or else those that it takes."""

        def look(value: Any, first: int = 0) -> int:
            if not isinstance(value, Batch):
                return first
            for number in self._chosen(op.label, step(), first, value):
                keep(_row(op.label, step(), first + number, value, number))
            return first + value.rows

        def chunks(values: Iterator[Any]) -> Iterator[Any]:
            first = 0
            for value in values:
                if isinstance(value, tuple) and len(value) == len(ITEM):  # a rank makes some items, in any order
                    look(value[ITEM.index("rows")], value[ITEM.index("first")])
                else:
                    first = look(value, first)
                yield value

        def run(**arguments: Any) -> Any:
            if op.returns is None:
                for value in arguments.values():
                    look(value)
                return method(**arguments)
            result = method(**arguments)
            if inspect.isgenerator(result):
                return chunks(result)
            look(result)
            return result

        return run

    def _chosen(self, label: str, step: int, first: int, batch: Batch) -> Iterator[int]:
        groups = batch.get("group")
        for number in range(batch.rows):
            unit = first + number if groups is None else f"group {groups[number]}"
            key = f"{label} {step} {unit}".encode()
            found = int.from_bytes(blake2b(key, digest_size=4).digest())
            if found * self._share.denominator < self._share.numerator << 32:
                yield number


class KeptRows:
    """Rows on their way to disk, from the main thread to the recorder's. If the disk refuses them, they wait."""

    def __init__(self, run_dir: Path, role: str, rank: int, max_bytes: int) -> None:
        self._folder, self._limit = rows_folder(run_dir, role, rank), max_bytes // FILES
        self._rows: deque[Row] = deque(maxlen=MOST_WAITING)
        self._failing, self._dropped = False, 0

    def add(self, row: Row) -> None:
        """Add a row, from any thread."""
        self._dropped += len(self._rows) == MOST_WAITING
        self._rows.append(row)

    def write(self) -> None:
        """Write the rows that wait; drop the oldest file if there are too many."""
        if not self._rows:
            return
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files = sorted(self._folder.glob("*.jsonl"))
            if not files or files[-1].stat().st_size >= self._limit:
                files.append(self._folder / f"{int(files[-1].stem) + 1 if files else 0:06}.jsonl")
            _append(files[-1], b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            for old in files[:-FILES]:
                old.unlink()
            if self._failing:
                LOG.warning("rows of this rank are kept again; %d are missing", self._dropped)
            self._failing, self._dropped = False, 0
        except OSError as error:
            over = max(0, len(rows) - (MOST_WAITING - len(self._rows)))
            self._dropped += over
            self._rows.extendleft(reversed(rows[over:]))
            if not self._failing:
                LOG.warning("rows of this rank cannot be kept: %s; the recorder tries again", error)
            self._failing = True


def rows_folder(run_dir: Path, role: str, rank: int) -> Path:
    """Return the folder with the kept rows of a rank."""
    return run_dir / RECORD_DIR / ROWS_DIR / f"{role}-{rank}"


def _append(path: Path, lines: bytes) -> None:
    """Append whole lines, or none. Raises `OSError`."""
    with path.open("ab", buffering=0) as file:
        before, left = file.tell(), memoryview(lines)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(before)
            raise


def _row(label: str, step: int, number: int, batch: Mapping[str, Any], at: int) -> Row:
    cut: list[str] = []
    columns = {name: _plain(values[at], name, cut) for name, values in batch.items()}
    return Row(step, label, number, columns, tuple(cut))


def _plain(value: Any, name: str, cut: list[str]) -> Any:
    """Return what JSON can hold: numbers, lists, texts. NaN and infinity become texts of their names."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
        value = value.numpy()
    if hasattr(value, "tolist"):
        if value.size > MOST_VALUES:
            cut.append(name)
            value = value.reshape(-1)[:MOST_VALUES]
        return _finite(value.tolist())
    if isinstance(value, bytes):
        value = value[: MOST_TEXT + 1].decode(errors="backslashreplace")
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            cut.append(name)
        return value[:MOST_TEXT].encode(errors="backslashreplace").decode()
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    except (TypeError, ValueError):
        return repr(value)[:MOST_TEXT]


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
