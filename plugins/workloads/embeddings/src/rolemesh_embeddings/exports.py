"""Exports of tables for serving: a base, deltas of the rows that changed since, and a manifest, in a folder.

Each rank writes its rows beside and renames the file. Its name contains a hash of its content, so it never changes. The
rank that comes last writes the manifest, which lists the files of all ranks after one step. A reader therefore sees all
tables of one step, or of the step before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from rolemesh.api.batch import Batch
from rolemesh_embeddings.hashing import BUCKETS, Keys, bucket_of, flat, mix, ranks_of_buckets, unique
from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.part import Part
from rolemesh_embeddings.table import Floats, begun, looked_up

__all__ = ["MANIFEST", "Export", "clean", "write"]

MANIFEST = "manifest.json"
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of a manifest that is no JSON, or lacks something."""
_NAME = re.compile(r"(?P<kind>base|delta|list)-(?P<step>\d+)-(?P<label>\d+-of-\d+)[-.].*")


def write(part: Part, folder: Path, step: int, deltas: int, seed: int) -> None:
    """Write a rank's rows after `step`: those that changed since its last export, or all of them if there is none.

    At most `deltas` deltas follow a base. A rank that repeats a step writes the same files again. `seed`: the job's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    label = f"{step:012}-{part.label}"
    files = _before(part, folder, step)
    if not files or part.updates > files[-1][1]:
        kind, files = ("delta", files) if 0 < len(files) <= deltas else ("base", [])
        since = files[-1][1] if files else -1
        arrays: dict[str, NDArray[Any]] = {}
        for name, table in part.tables.items():
            arrays |= {f"{name}/{column}": each for column, each in table.exported(since).items()}
        data = save(arrays)
        name = f"{kind}-{label}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        _write(folder / name, data, part)
        files = [*files, [name, part.updates]]
    _write(folder / f"list-{label}.json", json.dumps(files).encode(), part)
    lists = [folder / f"list-{step:012}-{rank}-of-{part.ranks}.json" for rank in range(part.ranks)]
    if all(path.exists() for path in lists):
        ranks = [json.loads(path.read_bytes()) for path in lists]
        about = {
            "step": step,
            "files": [name for each in ranks for name, _ in each],
            "updates": [each[-1][1] for each in ranks],
            "seed": seed,
            "tables": {name: table.options.model_dump() for name, table in part.tables.items()},
        }
        _write(folder / MANIFEST, json.dumps(about).encode(), part)


def _before(part: Part, folder: Path, step: int) -> list[Any]:
    """Return name and number of the update of each file of the rank's last export before `step`, if all are there."""
    lists = sorted(path for path in folder.glob(f"list-*-{part.label}.json") if path.name < f"list-{step:012}")
    files: list[Any] = json.loads(lists[-1].read_bytes()) if lists else []
    return files if all((folder / name).exists() for name, _ in files) else []


def clean(part: Part, folder: Path, step: int) -> None:
    """Remove files that nobody needs if no rank goes back behind `step`: this rank's, and those of killed writers.

    Rank 0 also removes those of other numbers of ranks.
    """
    paths = list(folder.iterdir()) if folder.is_dir() else []
    found = [(path, match) for path in paths if (match := _NAME.fullmatch(path.name))]
    bases = [int(at["step"]) for _, at in found if (at["kind"], at["label"]) == ("base", part.label)]
    before = max((base for base in bases if base <= step), default=0)
    for path, at in found:
        other = not at["label"].endswith(f"-of-{part.ranks}")
        if int(at["step"]) < before and (at["label"] == part.label or (other and part.rank == 0)):
            path.unlink(missing_ok=True)
    for path in paths:
        if path.name.startswith(f".{part.label}.") and path.name != _beside(part):
            path.unlink(missing_ok=True)


def _write(path: Path, data: bytes, part: Part) -> None:
    beside = path.with_name(_beside(part))
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _beside(part: Part) -> str:
    return f".{part.label}.{os.getpid()}"


class Export:
    """The tables after step `step`, from files `names`. It never changes."""

    def __init__(self, manifest: Mapping[str, Any], files: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        self.step, self.names = int(manifest["step"]), tuple(manifest["files"])
        self._files, self._seed = files, int(manifest["seed"])
        self._updates = np.array(manifest["updates"])
        self._options = {name: TableOptions.model_validate(each) for name, each in manifest["tables"].items()}
        # A bucket's last turn to be evicted, at its rank.
        done = self._updates[ranks_of_buckets(len(self._updates))]
        self._turns = done - (done - np.arange(BUCKETS)) % BUCKETS

    @classmethod
    def read(cls, folder: Path | str, before: Export | None = None) -> Export:
        """Return what the manifest says. Files that are in the export `before`, too, are not read again.

        Raises `FileNotFoundError` while there is none, and if a file was removed meanwhile: read again. Raises
        `ValueError` for a damaged file.
        """
        path = Path(folder, MANIFEST)
        known = before._files if before is not None else {}
        try:
            manifest = json.loads(path.read_bytes())
            if wrong := [name for name in manifest["files"] if "/" in name or not _NAME.fullmatch(name)]:
                raise ValueError(f"no export has files named {wrong}")
            return cls(manifest, {name: known.get(name) or _load(path.with_name(name)) for name in manifest["files"]})
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def lookup(self, table: str, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the values of different keys, float32 (keys, dim), and which of them have a row."""
        options, keys = self._options[table], flat(keys)
        values = begun(options, self._seed, table, keys)
        changed = np.full(len(keys), -1, np.int64)
        for name in self.names:  # of a rank's files the newest comes last
            file = self._files[name]
            if (known := file.get(f"{table}/keys")) is None:  # the table is newer than the file
                continue
            at = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
            here = known[at] == keys if len(known) else np.zeros(len(keys), np.bool_)
            values[here], changed[here] = file[f"{table}/values"][at[here]], file[f"{table}/changed"][at[here]]
        here = changed >= 0
        if options.evict_after is not None:
            here &= changed >= self._turns[bucket_of(mix(keys))] - options.evict_after
            values[~here] = begun(options, self._seed, table, keys[~here])
        return values, here

    def fetch(self, keys: Mapping[str, Any]) -> Batch:
        """Return the rows of `keys`, which are arrays by table, in the form of the operator `lookup`."""
        found: dict[str, Any] = {}
        for name, options in self._options.items():
            wanted = unique(np.concatenate([np.arange(options.dense_rows), flat(keys.get(name, ()))]))
            found[name] = wanted, self.lookup(name, wanted)[0]
        return looked_up([int(self._updates.min())], [found])


def _load(path: Path) -> Mapping[str, NDArray[Any]]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:16] not in path.name:
        raise ValueError(f"{path} is damaged: its content is not what its name says")
    found: Mapping[str, NDArray[Any]] = load(data)
    return found
