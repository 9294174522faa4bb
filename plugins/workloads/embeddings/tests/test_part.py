"""The state of a rank: files, changed rows, other numbers of ranks."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import HANG_S

from rolemesh.api.batch import Gathered
from rolemesh_checkpoint.reshard import reshard
from rolemesh_embeddings.hashing import BUCKETS, bucket_of, mix
from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.part import Part
from rolemesh_embeddings.table import Table
from rolemesh_runtime.digest import digest

OPTIONS = TableOptions(dim=4, evict_after=40, admit_after=2)
KEPT = TableOptions(dim=4)
"""Options of a table whose rows all stay."""


def part(folder: Path, rank: int = 0, ranks: int = 1, options: TableOptions = OPTIONS) -> Part:
    return Part({"t": Table("t", options, 0)}, rank, ranks, folder, file_mb=0.02)


def learn(parts: list[Part], first: int, last: int, most: int = 3000, new: int = 0) -> list[str]:
    """Update keys below `most`, which grow by `new` with each update."""
    told = []
    for update in range(first, last):
        rng = np.random.default_rng(update)
        keys = np.unique(rng.integers(0, most, 300)) + new * update
        grads = rng.normal(size=(len(keys), 4)).astype(np.float32)
        for each in parts:
            own = each.mine[bucket_of(mix(keys))]
            each.updates = update
            each.tables["t"].update(keys[own], grads[own], update)
            each.tables["t"].evict(update)
            told.append(each.finished())
    return told


@contextmanager
def full_disk() -> Iterator[None]:
    """Refuse to write more than 8 KiB of a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content(parts: list[Part]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for each in parts:
        store = each.tables["t"].store
        rows = store.rows()
        columns = [store.columns[name][rows].tolist() for name in ("keys", "changed", "values", "kept")]
        found |= {row[0]: row for row in zip(*columns, strict=True)}
    return found


def test_each_table_counts_its_own_updates_for_adam_also_after_a_resize(tmp_path: Path) -> None:
    """The table takes part in every fifth update of the ranks only."""
    options = TableOptions.model_validate({"dim": 4, "dtype": "bfloat16", "optimizer": {"use": "adam", "lr": 0.1}})
    whole = part(tmp_path / "whole", options=options)
    halves = [part(tmp_path / "halves", rank, 2, options) for rank in range(2)]
    for first in range(5, 50, 5):
        for parts in ([whole], halves):
            learn(parts, first, first + 1)
        if first == 25:
            states = [each.state(first) for each in halves]
            halves = [part(tmp_path / "halves", rank, 3, options) for rank in range(3)]
            for each in halves:
                each.restore(reshard(states, {"part": Gathered()}))
    assert {each.tables["t"].updates for each in (whole, *halves)} == {9}
    assert content([whole]) == content(halves)


def test_a_restored_part_continues_with_the_same_bits(tmp_path: Path) -> None:
    """At any update, also between a file and the next: rows, evicted keys, and the digest of the state."""
    whole = part(tmp_path / "whole")
    states = {}
    for update in range(1, 120):
        learn([whole], update, update + 1)
        states[update] = digest(whole.state(update))
    assert whole.wrote > 0
    lives = [part(tmp_path / "killed")]
    learn(lives, 1, 30)
    for stop in (47, 48, 49, 90, 120):
        state = lives[0].state(0)
        lives = [part(tmp_path / "killed")]
        lives[0].restore(state)
        learn(lives, lives[0].updates + 1, stop)
        assert digest(lives[0].state(0)) == states[stop - 1], stop
    assert content(lives) == content([whole])


def test_a_part_that_is_restored_often_has_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each life gives new keys other slots than the life before, and goes on with its files."""
    monkeypatch.setattr("rolemesh_embeddings.part.REWRITTEN", 4)
    whole, life = part(tmp_path / "whole", options=KEPT), part(tmp_path / "killed", options=KEPT)
    for update in range(1, 100):
        learn([whole, life], update, update + 1, 600, new=150)
        state = life.state(update)
        if update % 3 == 0:
            life = part(tmp_path / "killed", options=KEPT)
            life.restore(state)
    assert content([life]) == content([whole])


def test_a_restored_part_takes_the_slots_of_keys_from_files(tmp_path: Path) -> None:
    """It looks for none, but in buckets with keys that only the state has, or whose region has changed since."""

    def slots(each: Part) -> list[list[int]]:
        index, keys = each.tables["t"].store.index, each.tables["t"].store.columns["keys"]
        return [np.where(at > 0, keys[at - 1], -1).tolist() for at in map(index.region, range(BUCKETS))]

    before, again = part(tmp_path, options=KEPT), part(tmp_path, options=KEPT)
    before.state(0)
    learn([before], 1, 120)
    again.restore(before.state(120))
    orders = [each.tables["t"].store.index.orders for each in (before, again)]
    kept = np.flatnonzero(orders[0] == orders[1])
    assert len(kept) > BUCKETS / 2
    was, now = slots(before), slots(again)
    assert [now[bucket] for bucket in kept] == [was[bucket] for bucket in kept]
    assert content([again]) == content([before])


def test_other_numbers_of_ranks_keep_every_row(tmp_path: Path) -> None:
    """2 → 3 → 1 → 2, while updates go on between."""
    alone = part(tmp_path / "alone")
    learn([alone], 1, 130)
    parts, at = [part(tmp_path / "many", rank, 2) for rank in range(2)], 1
    for ranks, until in ((3, 40), (1, 75), (2, 101)):
        learn(parts, at, until)
        at = until
        states = [each.state(until) for each in parts]
        parts = [part(tmp_path / "many", rank, ranks) for rank in range(ranks)]
        for each in parts:
            template = each.state(until)  # as the engine asks for it, before it calls `restore`
            assert list(template) == ["part"]
            each.restore(reshard(states, {"part": Gathered()}))
            each.state(until)
            each.persisted(until)  # another rank may not have taken its files yet
    learn(parts, at, 130)
    assert content(parts) == content([alone])
    states = [each.state(130) for each in parts]
    for each in parts:
        each.persisted(130)
    assert {path.name for path in (tmp_path / "many").iterdir()} == {"0-of-2", "1-of-2"}
    again = [part(tmp_path / "many", rank, 2) for rank in range(2)]
    for each, state in zip(again, states, strict=True):
        each.restore(state)
    assert content(again) == content([alone])


def test_rows_stay_in_the_state_while_no_file_can_be_written(tmp_path: Path) -> None:
    whole, limited = part(tmp_path / "whole"), part(tmp_path / "limited")
    limited.state(0)
    learn([whole, limited], 1, 30)
    before, told = limited.wrote, list[str]()
    with full_disk():
        for update in range(30, 200):
            told += learn([limited], update, update + 1)
    assert [text for text in told if text] == [f"rows cannot be written to {tmp_path}/limited/0-of-1, and stay in the "
                                               "snapshots: [Errno 27] File too large"]  # fmt: skip
    assert limited.wrote == before
    again = part(tmp_path / "limited")
    again.restore(limited.state(200))
    learn([whole], 30, 300)
    learn([limited, again], 200, 300)
    assert limited.wrote > before
    assert content([limited]) == content([again]) == content([whole])
    limited.persisted(200)
    assert not list((tmp_path / "limited/0-of-1").glob(".*"))


def test_the_first_state_has_all_rows_if_no_file_can_be_written(tmp_path: Path) -> None:
    """The state names files that a part writes only then."""
    whole, limited, again = part(tmp_path / "whole"), part(tmp_path / "limited"), part(tmp_path / "limited")
    learn([whole, limited], 1, 60)
    assert not (tmp_path / "limited").exists()
    with full_disk():
        state = limited.state(60)
    again.restore(state)
    assert content([limited]) == content([again]) == content([whole])
    learn([whole, limited], 60, 200)
    assert limited.wrote > 0
    again = part(tmp_path / "limited")
    again.restore(limited.state(200))
    assert content([limited]) == content([again]) == content([whole])


def test_a_rank_says_that_it_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits in its log, and once in the job's warnings."""
    said, fsync = threading.Event(), os.fsync
    monkeypatch.setattr("rolemesh_embeddings.part.SLOW_S", 0.05)
    monkeypatch.setattr(os, "fsync", lambda file: said.wait(HANG_S) and fsync(file))
    monkeypatch.setattr("rolemesh_embeddings.part.LOG.warning", lambda *text: said.set())
    waiting = part(tmp_path)
    waiting.state(0)
    told = [text for text in learn([waiting], 1, 60) if text]
    assert told == [f"an update waited 0 s for the disk of {tmp_path}/0-of-1"]


def test_files_that_no_state_needs_are_removed(tmp_path: Path) -> None:
    whole = part(tmp_path)
    most = 0
    for update in range(1, 400):
        learn([whole], update, update + 1)
        whole.state(update)
        whole.persisted(update - 3)
        most = max(most, len(list(tmp_path.glob("*/*"))))
    assert whole.wrote > 40 * 20_000
    assert 3 < most < 40
    again = part(tmp_path)
    again.restore(whole.state(400))
    assert content([again]) == content([whole])
