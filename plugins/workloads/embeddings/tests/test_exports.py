"""Exports: a reader has the tables of one step as the servers look them up, whatever the writers have come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh_embeddings.exports import MANIFEST, Export, clean, write
from rolemesh_embeddings.hashing import bucket_of, mix
from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.part import Part
from rolemesh_embeddings.table import Table

KEYS = np.arange(-50, 2000)
OPTIONS = TableOptions(dim=4, evict_after=30, admit_after=2, dtype="bfloat16")


class Job:
    """Two tables on `ranks` ranks, of which each exports after a step."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self.folder, self.step, self.evicted = folder / "export", 0, 0
        tables = {"t": OPTIONS, "net": TableOptions(dim=4, dense_rows=3)}
        self.parts = [
            Part({name: Table(name, options, 5) for name, options in tables.items()}, rank, ranks, folder, 0.01)
            for rank in range(ranks)
        ]

    def learn(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.step += 1
            rng = np.random.default_rng(self.step)
            given = {"t": np.unique(rng.integers(0, 8 * self.step, 60)), "net": np.arange(3)}
            for part in self.parts:
                part.updates = self.step
                for name, keys in given.items():
                    own = keys[part.mine[bucket_of(mix(keys))]]
                    part.tables[name].update(own, rng.normal(size=(len(own), 4)).astype(np.float32), self.step)
                    self.evicted += part.tables[name].evict(self.step)
                part.finished()

    def export(self, *ranks: int) -> None:
        for part in [self.parts[rank] for rank in ranks] or self.parts:
            write(part, self.folder, self.step, 3, 5)

    def values(self, table: str = "t") -> Any:
        """Return what the servers look up."""
        found = np.empty((len(KEYS), 4), np.float32)
        for part in self.parts:
            own = part.mine[bucket_of(mix(KEYS))]
            found[own] = part.tables[table].lookup(KEYS[own])[0]
        return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_export_looks_up_what_the_servers_do(tmp_path: Path, ranks: int) -> None:
    """Bases and deltas, new, changed and evicted rows, and keys without one, with and without the export before."""
    job, read = Job(tmp_path, ranks), None
    for _ in range(12):
        job.learn(20)
        job.export()
        read = Export.read(job.folder, read)
        assert read.step == job.step
        for table in ("t", "net"):
            np.testing.assert_array_equal(read.lookup(table, KEYS)[0], job.values(table))
            np.testing.assert_array_equal(Export.read(job.folder).lookup(table, KEYS)[0], job.values(table))
    rows = sum(len(part.tables["t"].store) for part in job.parts)
    assert read is not None
    assert read.lookup("t", KEYS)[1].sum() == rows
    assert job.evicted > 0
    assert len([name for name in read.names if name.startswith("delta")]) == 3 * ranks
    found = read.fetch({"t": KEYS[:9]})
    assert found["net_keys"].values.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found["t_values"].values, job.values()[:9])


def test_an_export_does_not_change_with_later_ones(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.learn(5)
    job.export()
    before, values = Export.read(job.folder), job.values()
    job.learn(5)
    job.export()
    assert Export.read(job.folder, before).step == 10
    np.testing.assert_array_equal(before.lookup("t", KEYS)[0], values)


def test_ranks_that_die_before_the_manifest_have_changed_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    job.learn()
    job.export()
    job.learn()
    job.export(1)
    (job.folder / ".1-of-2.77").write_bytes(b"half")
    assert Export.read(job.folder).step == 1
    job.export()
    assert Export.read(job.folder).step == 2
    clean(job.parts[1], job.folder, 0)
    assert not list(job.folder.glob(".*"))


def test_files_of_earlier_bases_and_other_numbers_of_ranks_are_removed(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    for _ in range(6):
        job.learn()
        job.export()
    for part in job.parts:
        clean(part, job.folder, 4)
    assert len(names(job.folder)) == 1 + 6 * 4, "a rank may go back to step 4, whose base is of step 1"
    for part in job.parts:
        clean(part, job.folder, 5)
    assert len(names(job.folder)) == 1 + 2 * 4
    other = Job(tmp_path, 1)
    other.step = 10
    other.learn()
    other.export()
    clean(other.parts[0], other.folder, 11)
    assert len(names(job.folder)) == 1 + 2
    assert Export.read(job.folder).step == 11


def test_damaged_and_removed_files_are_distinguished(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.learn(3)
    job.export()
    [path] = job.folder.glob("base-*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        Export.read(job.folder)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Export.read(job.folder)
    job.export()  # the same step again
    assert Export.read(job.folder).step == 3
    assert (job.folder / MANIFEST).exists()


def test_a_restored_rank_goes_on_with_deltas(tmp_path: Path) -> None:
    job, again = Job(tmp_path), Job(tmp_path)
    job.learn(3)
    job.export()
    again.parts[0].restore(job.parts[0].state(3))
    again.step = 3
    again.learn()
    again.export()
    assert [name[:5] for name in Export.read(job.folder).names] == ["base-", "delta"]
    np.testing.assert_array_equal(Export.read(job.folder).lookup("t", KEYS)[0], again.values())
