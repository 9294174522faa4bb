"""A rank links data that it forwards as it came, and copies data that it has changed and small parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh_dataplane.codec import decode, unflatten
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.places import Run, place_of, renamed, runs_of, slots_of
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.slot_reader import SlotReader

SIZE = 1 << 20


class Rank:
    """A rank's slots, and what it reads of others'."""

    def __init__(self, folder: Path, name: str) -> None:
        self.pool, self.reader, self.folder = SlotPool(folder, f"slot-{name}-0-0"), SlotReader(folder), folder

    def send(self, value: Any) -> Payload:
        payload = Payload(value, self.pool, 1000, self.reader)
        payload.users = 1
        return payload

    def take(self, payload: Payload) -> Any:
        header, sizes, _ = unflatten(payload.body, 0, payload.hlen, len(payload.sizes))
        return decode(header, self.reader.read(payload.place, sizes))

    def inodes(self, payload: Payload) -> list[int]:
        return [(self.folder / name).stat().st_ino for name in slots_of(payload.place)]

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Rank, Rank, Rank]:
    return Rank(tmp_path, "a"), Rank(tmp_path, "b"), Rank(tmp_path, "c")


def numbers(count: int = SIZE, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count // 8)


def test_an_array_that_is_handed_on_is_the_same_file_under_another_name(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    sent = a.send(numbers())
    again = b.send(b.take(sent))
    assert again.place != sent.place
    assert b.inodes(again) == a.inodes(sent)
    further = c.send(c.take(again))
    np.testing.assert_array_equal(a.take(further), numbers())
    assert c.inodes(further) == a.inodes(sent)


def test_a_slot_that_others_have_linked_is_not_used_again_before_they_have_let_go(
    chain: tuple[Rank, Rank, Rank],
) -> None:
    a, b, c = chain
    sent = a.send(numbers())
    first = sent.place
    again = b.send(b.take(sent))
    sent.free()
    other = a.send(numbers(first=7))
    assert other.place != first
    np.testing.assert_array_equal(c.take(again), numbers())
    again.free()
    other.free()
    assert {a.send(numbers()).place, a.send(numbers()).place} == {first, "slot-a-0-0-2"}, "both are used again"
    assert not [name for name in a.files if name.startswith("slot-b")]


def test_a_link_outlives_the_first_name_of_its_file(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    again = b.send(b.take(a.send(numbers())))
    a.pool.close()
    np.testing.assert_array_equal(c.take(again), numbers())
    assert len(a.files) == 1


def test_a_name_that_is_used_again_is_of_the_same_file(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    for step in range(5):
        sent = a.send(numbers(first=step))
        again = b.send(b.take(sent))
        assert again.place == "slot-b-0-0-1"
        np.testing.assert_array_equal(c.take(again), numbers(first=step))
        again.free()
        sent.free()


def test_only_the_new_column_of_a_batch_is_copied(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    batch = Batch(
        {"x": numbers(), "y": numbers(first=5), "old": np.ones(SIZE // 8, np.float32), "n": np.ones(SIZE // 8)}
    )
    got = b.take(a.send(batch))
    again = b.send(got | {"old": np.zeros(SIZE // 8), "reward": numbers(first=9)})
    assert again.place.count("|") == 3, "x and y; the new one in the place of the old; n; and the reward"
    assert len(again.slots) == 2
    assert b.pool.used_bytes - again.slots[0].capacity < 2.2 * SIZE
    expected = batch | {"old": np.zeros(SIZE // 8), "reward": numbers(first=9)}
    assert c.take(again) == expected
    frames = again.frames((1, 0, 0, 0, 0, 0))
    header = unflatten(again.body, 0, again.hlen, len(again.sizes))[0]
    assert decode(header, frames[1:]) == expected, "to another node, too"


def test_less_than_half_of_a_slot_is_copied(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, _ = chain
    sent = a.send(Batch({"x": numbers(), "y": numbers(), "z": numbers()}))
    got = b.take(sent)
    assert b.inodes(b.send(got.select("x"))) != a.inodes(sent)
    assert b.inodes(b.send(got.select("x", "z"))) == a.inodes(sent)
    assert b.inodes(b.send(got["x"][1:])) != a.inodes(sent)


@pytest.mark.parametrize("scans", [True, False])
def test_a_tensor_that_was_written_to_is_copied(
    chain: tuple[Rank, Rank, Rank], scans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    if not scans:  # Linux before 6.7
        monkeypatch.setattr("rolemesh_dataplane.mapping._PAGEMAP_SCAN", 0)
    a, b, c = chain
    value = torch.arange(SIZE)
    sent = a.send(value)
    untouched = b.send(b.take(sent))
    assert b.inodes(untouched) == a.inodes(sent)
    for position in (0, SIZE // 2, SIZE - 1):
        got = b.take(sent)
        got[position] = -1
        view = got.numpy().view()
        view.flags.writeable = False
        for handed_on in (got, view):
            written = b.send(handed_on)
            assert b.inodes(written) != a.inodes(sent)
            assert int(c.take(written)[position]) == -1
        rows = b.send({"written": got[: SIZE // 2], "kept": got[SIZE // 2 :]})
        found = c.take(rows)
        assert torch.equal(torch.cat([found["written"], found["kept"]]), got)
    assert torch.equal(c.take(untouched), value)
    assert torch.equal(c.take(sent), value)


def test_data_at_the_address_of_an_earlier_slot_are_copied(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    for step in range(20):
        sent = a.send(numbers(first=step))
        b.take(sent)
        b.reader.close()
        mine = np.full(SIZE // 8, step)  # perhaps where the map was
        assert b.reader.find(mine.data) is None
        np.testing.assert_array_equal(c.take(b.send(mine)), mine)


def test_a_slot_whose_name_is_gone_or_has_another_file_is_copied(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    sent = a.send(numbers())
    got = b.take(sent)
    (b.folder / sent.place).unlink()
    again = b.send(got)
    np.testing.assert_array_equal(c.take(again), numbers())
    (b.folder / sent.place).write_bytes(bytes(2 * SIZE))
    np.testing.assert_array_equal(c.take(b.send(got)), numbers())
    assert not [slot for slot in again.slots if slot.linked]


def test_a_link_that_a_successor_adopted_is_given_up_as_long_as_it_is_anothers_too(
    chain: tuple[Rank, Rank, Rank],
) -> None:
    a, b, _ = chain
    sent = a.send(numbers())
    name = b.send(b.take(sent)).place
    after = SlotPool(b.folder, "slot-b-0-1")
    slot = after.adopt(name)
    assert slot is not None
    after.release(slot)
    assert not (b.folder / name).exists()
    assert not after.free
    sent.free()
    assert a.send(numbers()).place == "slot-a-0-0-1"


def test_a_linked_value_is_rescued_after_somebody_has_removed_all_files(chain: tuple[Rank, Rank, Rank]) -> None:
    a, b, c = chain
    batch = Batch({"x": numbers(), "y": numbers(first=1)})
    again = b.send(b.take(a.send(batch)) | {"reward": numbers(first=2)})
    for path in list(b.folder.iterdir()):
        path.unlink()
    b.pool.forget_lost()
    again.rescue()
    assert c.take(again) == batch | {"reward": numbers(first=2)}


def test_a_slot_whose_file_is_gone_is_not_used_again(chain: tuple[Rank, Rank, Rank]) -> None:
    a, _, c = chain
    sent = a.send(numbers())
    (a.folder / sent.place).unlink()
    sent.free()
    np.testing.assert_array_equal(c.take(a.send(numbers())), numbers())
    assert a.pool.free_bytes == 0


@pytest.mark.parametrize("runs", [[Run("a", 0, 3)], [Run("a", 64, 3)], [Run("a", 0, 1), Run("b", 128, 2)]])
def test_a_place_is_read_as_it_was_written(runs: list[Run]) -> None:
    place = place_of(runs)
    assert runs_of(place, 3) == runs
    assert slots_of(place) == tuple(dict.fromkeys(run.slot for run in runs))
    assert runs_of(renamed(place, lambda name: f"{name}-x"), 3) == [run._replace(slot=f"{run.slot}-x") for run in runs]


@pytest.mark.parametrize("place", ["a@0*2", "a@-64*3", "a@0*4|b@0*-1", "a@x*3", "a@0"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        runs_of(place, 3)
