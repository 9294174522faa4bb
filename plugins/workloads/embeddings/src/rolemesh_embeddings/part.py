"""The part of all tables that one rank has: its buckets, and its state as files with rows and the rows changed since.

A state names files. It contains the rows that changed since the newest of these, so that a snapshot costs little even
if the tables are large. Which rows are where depends on the updates only, never on time or on snapshots.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Gathered, Shard
from rolemesh.api.workload import State
from rolemesh.errors import RolemeshError
from rolemesh_embeddings.files import RowFile, write
from rolemesh_embeddings.hashing import BUCKETS, Keys, buckets_of_rank, ranks_of_buckets
from rolemesh_embeddings.index import Rows
from rolemesh_embeddings.store import Store
from rolemesh_embeddings.table import Table

__all__ = ["Part"]

LOG = logging.getLogger(__name__)
CHANGED = 64
"""A file is written when more than this fraction of the rows, 1 / `CHANGED`, has changed."""
AGAIN = 64
"""Number of updates after a file that could not be written until the next attempt."""
SLOW_S = 5.0
"""Seconds of waiting for the disk after which the rank says so."""
REWRITTEN = 32
"""A file also contains all rows of 1 / `REWRITTEN` of the buckets. So the rows in the files of a state are at most
1 + `REWRITTEN` / `CHANGED` times the rows of the tables."""


_OF_RANKS = re.compile(r"\d+-of-\d+")


class Named(NamedTuple):
    """A file with rows: its name, and the number of the update after which it was written."""

    name: str
    update: int


class Part:
    """The rows of one rank of `ranks`. Files are in ``folder/RANK-of-RANKS``; `elsewhere`: folders of other runs."""

    def __init__(
        self, tables: Mapping[str, Table], rank: int, ranks: int, folder: Path, file_mb: float, elsewhere: Any = ()
    ) -> None:
        self.tables, self.rank, self.ranks = tables, rank, ranks
        self.mine = buckets_of_rank(rank, ranks)
        self.updates = 0
        self.callers: dict[str, int] = {}
        """Number of the last applied update of each caller."""
        self._stores = {name + end: s for name, table in tables.items() for end, s in table.stores().items()}
        self.label = f"{rank}-of-{ranks}"
        self._top, self._own, self._elsewhere = folder, folder / self.label, tuple(elsewhere)
        self._file_bytes = file_mb * 1e6
        self._files: list[Named] = []
        self._bases = np.full(BUCKETS, -1, np.int64)
        """The update of the file with all rows of each bucket, -1 for none."""
        self._sources: dict[int, str] = {}
        """Name of that file, by bucket."""
        self._pending: Named | None = None
        self._turns: list[int] = []
        self._syncing: threading.Thread | None = None
        self._error: OSError | None = None
        self._again, self._failing, self._slow = 0, False, False
        self._written = False
        """False until the first state: before that, files have names but no content. A job without snapshots has one
        state, at its end."""
        self._kept: dict[int, set[str]] = {}
        self._first, self._restored = 1 << 62, 0
        """The step of the first state with an update of this life, and the number of updates before."""
        self.wrote = 0

    @property
    def memory(self) -> int:
        """Bytes of memory that the tables of the rank with most buckets need, judged by this rank's."""
        buckets = np.bincount(ranks_of_buckets(self.ranks)).max()
        return int(sum(store.memory for store in self._stores.values()) * buckets / self.mine.sum())

    # ------------------------------------------------------------------------------------------------------ updates

    def finished(self) -> str:
        """Note the end of an update: if enough rows have changed, write a file, or name the last one in states.

        Return why that is not possible any more, or that the disk is slow (once), and "" otherwise. Without
        files the changed rows stay in the state.
        """
        if self.updates < self._again:
            return ""
        since = self._pending.update if self._pending else -1
        fresh = sum(store.waiting(since) * store.row_bytes for store in self._stores.values())
        whole = sum(store.nbytes for store in self._stores.values())
        most = max(self._file_bytes, whole / CHANGED)
        if fresh <= (most / 2 if self._pending else most):  # half is time for the disk
            return ""
        failing, self._failing = self._failing, False
        waited, told = self._wait(), self._slow
        try:
            if self._pending:
                self._adopt()
            else:
                self._write()
        except OSError as error:
            self._again, self._failing = self.updates + AGAIN, True
            return "" if failing else f"rows cannot be written to {self._own}, and stay in the snapshots: {error}"
        self._slow = told or waited > SLOW_S
        return f"an update waited {waited:.0f} s for the disk of {self._own}" if self._slow and not told else ""

    def _write(self) -> None:
        named = Named(f"{self.label}-{self.updates:012}", self.updates)
        mine = np.flatnonzero(self.mine)
        order = mine[np.argsort(self._bases[mine], kind="stable")]
        self._turns = sorted(order[: -(-len(mine) // REWRITTEN)].tolist())
        if self._written:
            self._own.mkdir(parents=True, exist_ok=True)
            path = self._own / named.name
            write(path, self._stores, self._turns)
            self.wrote += path.stat().st_size
            self._sync_behind(path)
        self._pending = named

    def _write_late(self) -> None:
        """Write the files that the first state names. Let the state have all rows if that is not possible.

        They get the rows as they are now: a row that has changed since is also in the state, or in a later file.
        """
        self._written = True
        paths = [self._own / each.name for each in self._files]
        rest = np.flatnonzero(self._bases < 0).tolist()  # no file has all rows of these buckets
        try:
            if self._needed():
                self._own.mkdir(parents=True, exist_ok=True)
            for path in paths:
                buckets = sorted(bucket for bucket, name in self._sources.items() if name == path.name)
                write(path, self._stores, buckets, partial(_all_of, rest if path == paths[-1] else []))
            if self._pending is not None:
                paths.append(self._own / self._pending.name)
                write(paths[-1], self._stores, self._turns)
            for path in paths:
                _fsync(path)
        except OSError:
            self._files, self._pending, self._again = [], None, self.updates + AGAIN
            self._bases[:] = -1
            self._sources.clear()
            for store in self._stores.values():
                store.unsettle()

    def _sync_behind(self, path: Path) -> None:
        self._syncing = threading.Thread(target=self._sync, args=(path,), daemon=True)
        self._syncing.start()

    def _sync(self, path: Path) -> None:
        try:
            _fsync(path)
        except OSError as error:
            self._error = error

    def _adopt(self) -> None:
        """Let the state name the newest file, which is on disk. Raises `OSError` if it cannot be there."""
        if self._pending is None:
            return
        named, self._pending = self._pending, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._files.append(named)
        for bucket in self._turns:
            self._bases[bucket], self._sources[bucket] = named.update, named.name
        oldest = int(self._bases[self.mine].min(initial=1 << 62))
        needed = {*self._sources.values()}
        self._files = [each for each in self._files if each.update > oldest or each.name in needed]
        for store in self._stores.values():
            store.settled(named.update)

    # -------------------------------------------------------------------------------------------------------- state

    def state(self, step: int) -> State:
        """Return the state after `step`."""
        if not self._written:
            self._write_late()
        about: dict[str, Any] = {
            "updates": self.updates,
            "callers": self.callers,
            "files": [[*each] for each in self._files],
            "bases": [[bucket, self._sources[bucket]] for bucket in sorted(self._sources)],
            "pending": [*self._pending, self._turns] if self._pending else None,
            "tables": {name: table.kind for name, table in self.tables.items()},
            "table_updates": {name: table.updates for name, table in self.tables.items()},
            "rows": {},
            "counts": {},
        }
        found = Gathered()
        for name, store in self._stores.items():
            rows = store.fresh()
            gone = store.gone()
            about["rows"][name] = [len(rows), len(gone), store.gone_updates()]
            about["counts"][name] = store.index.counts.tolist()
            for column, array in store.packed().items():
                found[f"{self.label}/{name}/{column}"] = Shard(array, array.shape, (0,) * array.ndim)
            found[f"{self.label}/{name}/gone"] = _padded(gone, np.arange(len(gone)))
        text = json.dumps(about, sort_keys=True).encode()
        found[f"{self.label}/about"] = _padded(np.frombuffer(text, np.uint8), np.arange(len(text)), fill=ord(" "))
        self._kept[step] = self._needed()
        if self.updates > self._restored:
            self._first = min(self._first, step)
        return {"part": found}

    def restore(self, state: State) -> None:
        """Take this rank's buckets from the states of all ranks that had some of them."""
        given = {
            name: np.asarray(each.data if isinstance(each, Shard) else each) for name, each in state["part"].items()
        }
        labels = [name.removesuffix("/about") for name in given if name.endswith("/about")]
        parts = {label: json.loads(bytes(given[f"{label}/about"])) for label in sorted(labels)}
        self.updates = self._restored = max((each["updates"] for each in parts.values()), default=0)
        self._kept.clear()
        self._written = True
        for label, about in parts.items():
            self._compare(about.get("tables", {}))
            counts = about.get("table_updates") or dict.fromkeys(about.get("tables", {}), about["updates"])
            for name in counts.keys() & self.tables.keys():
                self.tables[name].updates = max(self.tables[name].updates, counts[name])
            for caller, number in about["callers"].items():
                self.callers[caller] = max(self.callers.get(caller, 0), number)
            where = self.mine & buckets_of_rank(*_rank_of(label))
            if where.any():
                self._restore(label, about, given, where)
        pending = parts[self.label]["pending"] if list(parts) == [self.label] else None
        # Without the file nothing is lost: its rows are still in the state, and another file follows.
        if pending is not None and (path := self._take(pending[0])) is not None:
            self._pending, self._turns = Named(*pending[:2]), pending[2]
            self._sync_behind(path)

    def _compare(self, kinds: Mapping[str, list[Any]]) -> None:
        """Raise `RolemeshError` if a table was of another kind. A table that is new begins empty."""
        for name, was in kinds.items():
            if name not in self.tables:
                LOG.warning("the state has a table %r, which the job no longer has: its rows are left out", name)
            elif (now := self.tables[name].kind) != was:
                raise RolemeshError(
                    f"the table {name!r} has {_kind(now)}, and in the state that it takes over {_kind(was)}",
                    where=f"tables.{name}",
                    remedy="give it the options of the earlier run, or another name: then it begins empty",
                )

    def _restore(self, label: str, about: Any, given: Mapping[str, Any], where: NDArray[np.bool_]) -> None:
        updates = dict(about["files"])
        wanted: dict[str, list[int]] = {}
        for bucket, name in about["bases"]:
            if where[bucket]:
                wanted.setdefault(name, []).append(bucket)
                self._bases[bucket], self._sources[bucket] = updates[name], name
        for name, store in self._stores.items():
            if name in about.get("counts", {}):
                store.index.expected = np.where(where, about["counts"][name], store.index.expected)
        bases = np.where(where, self._bases, 1 << 62)
        with ExitStack() as opened:
            files: list[tuple[Named, RowFile, NDArray[np.bool_]]] = []
            for named in starmap(Named, about["files"]):
                newer = bases < named.update
                if named.name in wanted or newer.any():
                    file = RowFile(self._found(named.name))
                    opened.callback(file.close)
                    files.append((named, file, newer))
            for name, store in self._stores.items():
                ordered = _ordered(name, files, wanted)
                for named, file, newer in files:
                    for bucket in wanted.get(named.name, ()):
                        file.base(name, store, bucket)
                    file.changed(name, store, newer, ordered)
        self._files += [named for named, *_ in files if named not in self._files]
        self._files.sort(key=lambda each: (each.update, each.name))
        for name, store in self._stores.items():
            if name not in about["rows"]:
                continue
            count, removed, stamps = about["rows"][name]
            columns = {column: given[f"{label}/{name}/{column}"][:count] for column in store.columns}
            gone = given[f"{label}/{name}/gone"][:removed]
            store.put(columns, gone, where)
            store.restore_gone(gone, stamps)

    def _found(self, name: str) -> Path:
        path = self._take(name)
        if path is None:
            raise RolemeshError(
                f"the state names the file {name}, which is in none of the ranks' folders",
                where=", ".join(map(str, (self._top, *self._elsewhere))),
                remedy="set the option `folder` to the folder of the earlier run; several nodes must share it",
            )
        return path

    def _take(self, name: str) -> Path | None:
        """Return the path of a file in this rank's own folder, after a link or a copy from elsewhere if need be."""
        path = self._own / name
        if path.exists():
            return path
        for top in (self._top, *self._elsewhere):
            for found in sorted(top.glob(f"*/{name}")):
                self._own.mkdir(parents=True, exist_ok=True)
                beside = path.with_name(f".{name}.{os.getpid()}")
                try:
                    os.link(found, beside)
                except OSError:
                    shutil.copyfile(found, beside)
                    with beside.open("rb") as file:
                        os.fsync(file.fileno())
                beside.rename(path)
                return path
        return None

    def persisted(self, step: int) -> None:
        """Remove the files that no state from `step` on names, and those of other numbers of ranks.

        A checkpoint with an update of this life shows that all ranks have taken their files.
        """
        if self.rank == 0 and step >= self._first and self._top.is_dir():
            for folder in self._top.iterdir():
                if _OF_RANKS.fullmatch(folder.name) and not folder.name.endswith(f"-of-{self.ranks}"):
                    shutil.rmtree(folder, ignore_errors=True)
        self._kept = {each: names for each, names in self._kept.items() if each >= step}
        if not self._kept:
            return
        needed = self._needed().union(*self._kept.values())
        if self._own.is_dir():
            for path in self._own.iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def _needed(self) -> set[str]:
        """Return the names of the files of the present state, and of the one that follows."""
        return {each.name for each in (*self._files, *([self._pending] if self._pending else ()))}

    def close(self) -> None:
        """Wait for the file that is being written."""
        self._wait()

    def _wait(self) -> float:
        """Wait until the newest file is on disk, and return the seconds."""
        began = time.monotonic()
        if self._syncing is not None:
            self._syncing.join(SLOW_S)
            if self._syncing.is_alive():
                LOG.warning("waiting for the disk of %s: fsync has not ended for %g s", self._own, SLOW_S)
                self._syncing.join()
        return time.monotonic() - began


def _all_of(buckets: list[int], store: Store) -> tuple[Rows, Keys]:
    """Return all rows of buckets, and no removed key."""
    found = [store.index.rows_of(bucket) for bucket in buckets]
    return np.concatenate([*found, np.zeros(0, np.int64)]), np.zeros(0, np.int64)


def _ordered(
    store: str, files: Sequence[tuple[Named, RowFile, NDArray[np.bool_]]], wanted: Mapping[str, Sequence[int]]
) -> NDArray[np.bool_]:
    """Return for each bucket whether its keys have the same slots in the file with all its rows and in newer ones."""
    first = np.zeros(BUCKETS, np.int64)
    for named, file, _ in files:
        for bucket in wanted.get(named.name, ()):
            first[bucket] = file.order(store, bucket)
    same = first != 0
    for _, file, newer in files:
        orders = file.orders(store)
        same &= ~newer | (orders == 0) | (orders == first)
    return same


def _fsync(path: Path) -> None:
    for each in (path, path.parent):
        file = os.open(each, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def _kind(kind: list[Any]) -> str:
    dim, dtype, optimizer = kind
    return f"{dim} values of {dtype} a row and the optimizer {optimizer}"


def _rank_of(label: str) -> tuple[int, int]:
    rank, _, ranks = label.partition("-of-")
    return int(rank), int(ranks)


def _padded(array: NDArray[Any], rows: NDArray[np.int64], fill: int = 0) -> Shard:
    """Return rows of `array`, padded to a power of two: lengths that stay the same cost less to store."""
    size = 1 << max(6, (max(len(rows), 1) - 1).bit_length())
    found = np.full((size, *array.shape[1:]), fill, array.dtype)
    found[: len(rows)] = array[rows]
    return Shard(found, found.shape, (0,) * found.ndim)
