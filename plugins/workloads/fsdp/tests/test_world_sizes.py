"""A snapshot on disk: restored at another world size, and exported as a Hugging Face folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_group

from rolemesh_checkpoint import disk
from rolemesh_checkpoint.reshard import merge
from rolemesh_fsdp import FSDPOptions, FSDPWorkload


def options(model: Path) -> dict[str, Any]:
    return {"model": str(model), "lr": 1e-2, "warmup_steps": 2, "weight_decay": 0.1}


def rows(size: int) -> list[int]:
    return {1: [5], 2: [3, 2], 4: [2, 1, 1, 1]}[size]


@pytest.fixture
def persisted(group, tiny_model, texts, tmp_path):
    """``persisted(world_size, model, **options)``: a set after two steps, and what each rank had."""
    shm = tempfile.mkdtemp(prefix="snapshot-test-")

    def make(size: int, model: Path = tiny_model, **more: Any) -> tuple[Path, list[Any]]:
        batches = [texts(seed) for seed in range(2)]
        results = group(trainer_group.persist, size, options(model) | more, batches, rows(size), shm)
        files = {}
        for rank in range(size):
            name = disk.state_file("trainer", rank, size)
            path = disk.step_folder(tmp_path, 0) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(shm, f"snap-trainer-{rank}-0"), path)
            files[name] = (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        manifest = disk.Manifest("job", "id", 0, 10, {"trainer": size}, files)
        return disk.write_manifest(tmp_path, manifest), results

    yield make
    shutil.rmtree(shm)


@pytest.mark.parametrize(("old", "new"), [(2, 1), (1, 2), (2, 4), (2, 2)])
def test_another_world_size_goes_on_from_the_same_bits(group, tiny_model, texts, persisted, old, new):
    origin, before = persisted(old)
    resumed = group(trainer_group.resume, new, options(tiny_model), str(origin), [texts(7)], rows(new))
    start = trainer_group.assembled([result[0] for result in resumed])
    end = trainer_group.assembled(before)
    assert start.keys() == end.keys()
    assert all(np.array_equal(start[name], end[name]) for name in start)
    moments = [merged_moments([r["state"] for r in results]) for results in (before, [r[0] for r in resumed])]
    assert all(np.array_equal(moments[0][name], moments[1][name]) for name in moments[0])
    straight = group(trainer_group.train, old, options(tiny_model), [texts(0), texts(1), texts(7)], rows(old))
    wanted, found = trainer_group.assembled(straight), trainer_group.assembled([result[1] for result in resumed])
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((4, 2), (2, 1)),
        pytest.param((2, 2), (2, 1), marks=pytest.mark.more),
        pytest.param((2, 1), (4, 2), marks=pytest.mark.more),
        pytest.param((1, 1), (2, 2), marks=pytest.mark.more),
        pytest.param((4, 2), (2, 2), marks=pytest.mark.more),
    ],
    ids=str,
)
def test_ranks_that_divide_each_layer_or_do_not_any_more_go_on_from_the_same_bits(
    group, even_model, texts, persisted, old, new
):
    (before, parallel), (after, divided) = old, new
    origin, results = persisted(before, even_model("qwen3", head_dim=8), tensor_parallel=parallel)
    given = options(even_model("qwen3", head_dim=8)) | {"tensor_parallel": divided}
    resumed = group(trainer_group.resume, after, given, str(origin), [texts(7)], rows(after))
    end, start = (trainer_group.assembled(found) for found in (results, [result[0] for result in resumed]))
    assert start.keys() == end.keys()
    assert all(np.array_equal(start[name], end[name]) for name in start)
    moments = [merged_moments([r["state"] for r in found]) for found in (results, [r[0] for r in resumed])]
    assert all(np.array_equal(moments[0][name], moments[1][name]) for name in moments[0])
    straight = group(trainer_group.train, 1, options(Path(given["model"])), [texts(0), texts(1), texts(7)], [5])
    wanted, found = trainer_group.assembled(straight), trainer_group.assembled([result[1] for result in resumed])
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_torch_reads_the_folder_of_ranks_that_divide_each_layer(even_model, persisted):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    origin, results = persisted(2, even_model(), tensor_parallel=2)
    weights = trainer_group.assembled(results)
    names = [name for name in weights if name not in ("__version__", "lm_head.weight")]
    found = {"model": {name: torch.zeros(weights[name].shape) for name in names}}
    dcp.load(found, storage_reader=HuggingFaceStorageReader(str(origin / "trainer")), no_dist=True)
    for name, value in found["model"].items():
        np.testing.assert_array_equal(value.numpy(), weights[name], err_msg=name)


def merged_moments(states: list[Any]) -> dict[str, np.ndarray]:
    merged = merge(states)["optimizer"]
    assert merged.keys() == {"exp_avg", "exp_avg_sq"}
    return {f"{moment}/{name}": value for moment, named in merged.items() for name, value in named.items()}


def test_a_snapshot_of_another_model_is_refused(group, tiny_model, texts, persisted, tmp_path):
    origin, _ = persisted(2)
    (state, _) = disk.states(origin, "trainer")
    workload = FSDPWorkload(FSDPOptions(**options(tiny_model)))
    workload.setup(trainer_group.RankContext())
    with pytest.raises(ValueError, match="at another world size"):
        workload.restore(state)
    state["model"].pop("model.norm.weight")
    with pytest.raises(ValueError, match=r"another model than .*it differs in \['model.norm.weight'\]"):
        workload.restore(state)


def test_the_export_is_a_hugging_face_folder(tiny_model, persisted, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    origin, results = persisted(2)
    (tiny_model / "tokenizer_config.json").write_text("{}")
    folder = tmp_path / "exported"
    state = merge(disk.states(origin, "trainer"))
    FSDPWorkload.export(FSDPOptions(**options(tiny_model)), state, folder)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer_config.json"}
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    weights = trainer_group.assembled(results)
    weights.pop("__version__")
    assert loaded.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(loaded[name].numpy(), value, err_msg=name)
