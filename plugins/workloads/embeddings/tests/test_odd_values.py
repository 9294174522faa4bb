"""Keys, gradients, tables and disks that a person gives a server by mistake."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.waiting import HANG_S

from rolemesh import Batch, Ragged, RankContext
from rolemesh.errors import RolemeshError
from rolemesh_embeddings import EmbeddingClient, Embeddings, Export
from rolemesh_embeddings.options import EmbeddingsOptions


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., Embeddings]:
    def make(role: str = "ps", **options: Any) -> Embeddings:
        made = Embeddings(EmbeddingsOptions.model_validate({"tables": {"t": {"dim": 4}}} | options))
        made.setup(RankContext(seed=0, role=role, run_dir=tmp_path))
        return made

    return make


def gradients(keys: Any, grads: Any, table: str = "t") -> Batch:
    places = np.array([0, len(keys)])
    return Batch({f"{table}_keys": Ragged(np.asarray(keys), places), f"{table}_grads": Ragged(grads, places)})


def value(ps: Embeddings, key: int) -> list[float]:
    found: list[float] = ps.lookup(Batch({"t": np.array([key])}))["t_values"].values[0].tolist()
    return found


@pytest.mark.parametrize(
    "optimizer", ["adam", *(pytest.param(each, marks=pytest.mark.more) for each in ("sgd", "adagrad"))]
)
def test_a_client_and_a_server_learn_what_torch_does(server: Any, optimizer: str) -> None:
    """Bags of repeated and extreme keys, gradients of 0 through a dead ReLU, a step without any gradient, and a second
    table that the loss rarely uses."""
    judge = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}[optimizer]
    ps = server(tables={name: {"dim": 4, "optimizer": {"use": optimizer, "lr": 0.1}} for name in ("t", "rare")})
    keys = np.array([0, -1, 2**63 - 1, -(2**63), 5, 6, 7])
    rows, order = ps.lookup(Batch({"t": keys, "rare": keys})), np.argsort(np.argsort(keys))
    theirs = {name: torch.nn.EmbeddingBag(len(keys), 4, mode="sum", sparse=True) for name in ("t", "rare")}
    for name, bag in theirs.items():
        bag.weight.data = torch.from_numpy(rows[f"{name}_values"].values[order].copy())
    steps = judge([bag.weight for bag in theirs.values()], lr=0.1)
    client, rng = EmbeddingClient(), np.random.default_rng(0)
    for step in range(30):
        bags = rng.integers(0, len(keys), (6, 3))
        client.load(ps.lookup(Batch({"t": keys[bags], "rare": keys[bags]})))
        steps.zero_grad()
        for name in ("t", "rare") if step % 5 == 4 else ("t",) if step != 7 else ():
            for found in (client(name, keys[bags]).sum(1), theirs[name](torch.from_numpy(bags))):
                torch.relu(found - 0.02 * step).square().sum().backward()
        ps.update(client.gradients())
        steps.step()
    found = ps.lookup(Batch({"t": keys, "rare": keys}))
    for name, bag in theirs.items():
        ours = found[f"{name}_values"].values[order]
        np.testing.assert_allclose(ours, bag.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"t": {"dim": 2, "scale": float("inf")}}, "finite"),
        ({"t": {"dim": 2, "optimizer": {"use": "adam", "lr": float("inf")}}}, "finite"),
        ({"t": {"dim": 2}, "t_keys": {"dim": 2}}, "a column for the table 't'"),
    ],
)
def test_options_that_can_only_be_a_mistake_are_refused(tables: Any, said: str) -> None:
    with pytest.raises((ValueError, RolemeshError), match=said):
        Embeddings.check(EmbeddingsOptions.model_validate({"tables": tables}), 1)


def test_a_module_with_more_parameters_than_dense_rows_have_is_an_error(server: Any) -> None:
    ps, client = server(tables={"net": {"dim": 4, "dense_rows": 3}}), EmbeddingClient()
    client.hold("net", torch.nn.Linear(10, 4))
    with pytest.raises(RolemeshError, match="set dense_rows to 11"):
        client.load(ps.lookup(Batch({"t": np.array([1])})))


@pytest.mark.parametrize("keys", [[1.0], [True], ["a"], [None], np.array([2**64], object)])
def test_values_that_are_no_integers_are_refused_as_keys(server: Any, keys: Any) -> None:
    """A float that was cut to an integer would be another key."""
    ps, client = server(), EmbeddingClient()
    client.load(ps.lookup(Batch({"t": np.array([1])})))
    for ask in (lambda: ps.lookup(Batch({"t": np.array(keys)})), lambda: client("t", keys)):
        with pytest.raises(RolemeshError, match="are no keys"):
            ask()


def test_gradients_that_are_not_finite_change_no_row(server: Any) -> None:
    """Other keys of the same step are updated, and the rank warns once."""
    ps, warned = server(), list[str]()
    ps.ctx.warn = warned.append
    ps.update(gradients([1, 2], np.ones((2, 4), np.float32)))
    before = value(ps, 1), value(ps, 2)
    for wrong in (np.nan, np.inf, -np.inf):
        grads = np.ones((3, 4), np.float32)
        grads[1, 2] = wrong
        ps.update(gradients([1, 2, 1], grads))
    assert value(ps, 2) == before[1]
    assert np.isfinite(value(ps, 1)).all()
    assert value(ps, 1) != before[0]
    assert len(warned) == 1
    assert "first for key 2" in warned[0]
    ps.update(gradients([3], np.full((1, 4), 3e38, np.float32)))  # their squares are infinite, they are not
    assert np.isfinite(value(ps, 3)).all()
    assert len(warned) == 1


def test_a_wrong_call_fails_alone(server: Any) -> None:
    """Calls that wait together are answered together, but none suffers for another one."""
    ps, good = server(), [np.array([1]), np.ones((1, 4), np.float32)]

    async def ask() -> list[Any]:
        calls = [
            ps.push(1, {"t": [np.array([1]), np.ones((1, 3), np.float32)]}),
            ps.push(2, {"other": good}),
            ps.push(3, {"t": good}),
            ps.fetch({"other": np.array([1])}),
            ps.fetch({"t": np.array([1])}),
        ]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), HANG_S)

    found = asyncio.run(ask())
    assert [isinstance(each, RolemeshError) for each in found] == [True, True, False, True, False], found
    assert found[2] == 1


def test_calls_that_cannot_be_applied_fail_and_do_not_wait_for_ever(server: Any) -> None:
    ps = server(tables={"t": {"dim": 4, "most_rows": 1}})
    keys = np.arange(ps.part.tables["t"].store.most + 1)

    async def ask() -> list[Any]:
        push = [ps.push(number, {"t": [keys, np.ones((len(keys), 4), np.float32)]}) for number in (1, 2)]
        return await asyncio.wait_for(asyncio.gather(*push, return_exceptions=True), HANG_S)

    assert all("no room for more" in str(each) for each in asyncio.run(ask()))


def test_a_resumed_job_may_have_other_tables_but_no_other_kind_of_one(server: Any) -> None:
    ps = server()
    ps.update(gradients(range(1000), np.ones((1000, 4), np.float32)))
    state = ps.snapshot()
    adagrad = {"dim": 4, "optimizer": {"use": "adagrad", "lr": 3.0}}
    more = server(tables={"t": adagrad, "new": {"dim": 2}})
    more.restore(state)
    assert value(more, 7) == value(ps, 7)
    more.update(gradients([1], np.ones((1, 2), np.float32), "new"))
    again = server(tables={"new": {"dim": 2}})
    again.restore(more.snapshot())
    assert len(again.part.tables["new"].store) == 1
    for wrong in ({"dim": 8}, {"dim": 4, "dtype": "bfloat16"}, {"dim": 4, "optimizer": {"use": "sgd"}}):
        with pytest.raises(RolemeshError, match=r"tables\.t: the table 't' has .* takes over 4 values of float32"):
            server(tables={"t": wrong}).restore(state)


def test_readers_keep_the_export_before_one_that_finds_no_room(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, warned = server(), list[str]()
    ps.ctx.warn = warned.append
    ps.update(gradients([1], np.ones((1, 4), np.float32)))
    ps.publish()
    before = value(ps, 1)
    ps.update(gradients([1], np.ones((1, 4), np.float32)))
    ps.ctx.step = 1
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(3):
            ps.publish()
    assert Export.read(tmp_path / "export").lookup("t", np.array([1]))[0][0].tolist() == before
    assert len(warned) == 1
    assert "No space left on device" in warned[0]
    assert not list((tmp_path / "export").glob(".0-of-1.*"))
    ps.publish()
    assert Export.read(tmp_path / "export").lookup("t", np.array([1]))[0][0].tolist() == value(ps, 1)


def test_two_roles_do_not_export_to_one_folder(server: Any) -> None:
    server("users").publish()
    with pytest.raises(RolemeshError, match="the folder belongs to the role 'users' of the run"):
        server("items").publish()
    server("items", export="other").publish()


@pytest.mark.parametrize("option", ["folder", "export"])
def test_two_runs_do_not_share_a_folder_unless_one_resumes_the_other(tmp_path: Path, option: str) -> None:
    shared = tmp_path / "shared"

    def begin(run: str, resumed: str = "") -> Embeddings:
        folder = tmp_path / run
        folder.mkdir(exist_ok=True)
        origin = str(tmp_path / resumed / "snapshots/step-0") if resumed else ""
        (folder / "run.json").write_text(json.dumps({"origin": origin}))
        tables = {"t": {"dim": 4}}
        made = Embeddings(EmbeddingsOptions.model_validate({"tables": tables, option: str(shared), "file_mb": 1e-5}))
        made.setup(RankContext(seed=0, role="ps", run_dir=folder))
        made.update(gradients([1, 2], np.ones((2, 4), np.float32)))
        made.snapshot()
        made.publish()
        return made

    def files() -> dict[str, bytes]:
        found = (path for path in shared.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path): path.read_bytes() for path in found}

    begin("first").persisted(0)
    before = files()
    assert before
    with pytest.raises(RolemeshError, match=re.escape(f"the role 'ps' of the run {tmp_path / 'first'}")) as refused:
        begin("second")
    assert files() == before
    begin("first")  # a rank that was restarted
    begin("third", "first")
    for run, resumed in (("first", ""), ("fourth", "first")):
        with pytest.raises(RolemeshError, match=re.escape(str(tmp_path / "third"))):
            begin(run, resumed)
    assert str(refused.value).count("remove the file") == 1
    for mark in shared.rglob(".of-*"):
        assert f"'ps' of the run {tmp_path / 'third'}" in mark.read_text()
        mark.unlink()  # as the error says
    begin("second")


def test_other_folders_beside_the_files_of_ranks_stay(server: Any, tmp_path: Path) -> None:
    other = tmp_path / "embeddings/ps/mine"
    other.mkdir(parents=True)
    ps = server()
    ps.update(gradients([1], np.ones((1, 4), np.float32)))
    ps.snapshot()
    ps.persisted(0)
    assert other.is_dir()
