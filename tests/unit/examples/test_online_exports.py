"""The exports of examples/online: a reader has a whole model of one step, whatever the writer has come to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "examples/online"))
from clicks import block
from exports import MANIFEST, Served, clean, write_manifest, write_part
from features import keys
from model import Model, auc


def batch(number: int) -> tuple[Any, Any]:
    columns = block(number, 0, 1_000_000)
    found = keys(*(columns[name] for name in ("user", "item", "segment", "topic")))
    return found, columns["clicked"].astype(np.float32)


def exported(folder: Path, model: Model, names: list[str], step: int, *, whole: bool) -> list[str]:
    names = [] if whole else list(names)
    names.append(write_part(folder, "base" if whole else "delta", step, model.export(whole)))
    write_manifest(folder, step, names, newest=0.0)
    return names


def test_a_base_and_its_deltas_are_the_model(tmp_path: Path) -> None:
    model, names, served = Model(), list[str](), None
    for step in range(4):
        model.learn(*batch(step))
        names = exported(tmp_path, model, names, step, whole=step in (0, 3))
        served = Served.read(tmp_path, served)
        found = batch(step + 1)[0]
        assert served.step == step
        assert (served.predict(found) == model.predict(found)).all()
        assert (Served.read(tmp_path).predict(found) == model.predict(found)).all()


def test_a_read_export_does_not_change_with_later_ones(tmp_path: Path) -> None:
    model, found = Model(), batch(5)[0]
    model.learn(*batch(0))
    names = exported(tmp_path, model, [], 0, whole=True)
    before = Served.read(tmp_path)
    chance = before.predict(found)
    model.learn(*batch(1))
    exported(tmp_path, model, names, 1, whole=False)
    assert Served.read(tmp_path, before).step == 1
    assert (before.predict(found) == chance).all()


def test_a_writer_that_dies_before_the_manifest_has_changed_nothing(tmp_path: Path) -> None:
    model = Model()
    model.learn(*batch(0))
    exported(tmp_path, model, [], 0, whole=True)
    model.learn(*batch(1))
    write_part(tmp_path, "delta", 1, model.export(False))
    (tmp_path / f".{MANIFEST}.1").write_text('{"step": 1, "fi')
    assert Served.read(tmp_path).step == 0
    clean(tmp_path, before=0)
    assert not list(tmp_path.glob(".*"))
    assert Served.read(tmp_path).step == 0


def test_damaged_and_removed_parts_are_distinguished(tmp_path: Path) -> None:
    model = Model()
    model.learn(*batch(0))
    (name,) = exported(tmp_path, model, [], 0, whole=True)
    data = bytearray((tmp_path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        Served.read(tmp_path)
    clean(tmp_path, before=1)
    with pytest.raises(FileNotFoundError):
        Served.read(tmp_path)


def test_keys_that_were_not_used_for_long_are_forgotten_and_the_same_ones_each_time() -> None:
    models = [Model(), Model()]
    for number in range(6):
        for model in models:
            model.learn(*batch(number))
        state = models[1].state()
        models[1] = Model()
        models[1].load_state(state)
        for model in models:
            model.forget(2000)
            assert len(model.rows) <= 2000
    found = batch(6)
    assert (models[0].predict(found[0]) == models[1].predict(found[0])).all()
    assert models[0].find(batch(5)[0], grow=False).min() >= 0, "what was used last is there"


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    chance, clicked = np.float32([0.1, 0.4, 0.4, 0.8, 0.2]), np.float32([0, 1, 0, 1, 1])
    pairs = [(p > n) + 0.5 * (p == n) for p in chance[clicked > 0] for n in chance[clicked == 0]]
    assert auc(chance, clicked) == pytest.approx(np.mean(pairs))
    assert auc(chance, np.ones(5)) is None
