import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from rolemesh.errors import OptionsError
from rolemesh_torch.model_folder import config_of, damages, header_of, text_config_of, weight_files

WEIGHTS = save({"a": np.ones((2, 3), np.float32), "b": np.zeros(5, np.int64)}, metadata={"format": "pt"})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 538090408\n"
INDEX = "model.safetensors.index.json"
DEEP = b"[" * 200_000


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path


def said(folder, **options):
    return [f"{error}" for error in damages(folder, **options)]


def test_a_whole_folder_has_no_damage(folder):
    assert said(folder) == []
    assert config_of(folder) == text_config_of(folder) == {"model_type": "llama"}
    assert weight_files(folder) == [folder / "model.safetensors"]
    _, tensors = header_of(folder / "model.safetensors")
    assert tensors["a"]["shape"] == [2, 3]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("config.json", b"", "is empty"),
        ("config.json", b'{"a": ', "is no JSON"),
        ("config.json", b"\xff\xfe\xfd", "is no JSON"),
        ("config.json", DEEP, "is no JSON"),
        ("config.json", b"[]", "holds [], and a JSON object belongs there"),
        ("config.json", b'{"text_config": [1]}', "has the text_config [1]"),
        ("config.json", POINTER, "is a Git LFS pointer"),
        ("tokenizer.json", WEIGHTS, "is no JSON"),
        ("tokenizer_config.json", b"null", "holds null"),
        ("generation_config.json", b"{", "is no JSON"),
        ("special_tokens_map.json", POINTER, "is a Git LFS pointer"),
        ("model.safetensors", b"", "is empty"),
        ("model.safetensors", POINTER, "is a Git LFS pointer"),
        ("model.safetensors", WEIGHTS[:5], "has no header"),
        ("model.safetensors", WEIGHTS[:40], "has no header"),
        ("model.safetensors", WEIGHTS[:-1], "its header says"),
        ("model.safetensors", WEIGHTS + b"\0", "its header says"),
        ("model.safetensors", b"\xff" * 64, "has no header"),
        ("model.safetensors", struct.pack("<Q", len(DEEP)) + DEEP, "has no header"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(folder, name, content, what):
    (folder / name).write_bytes(content)
    (found,) = said(folder)
    assert f"{folder / name} {what}" in found or (f"{folder / name}" in found and what in found)
    assert "→" in found


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ({}, f"{INDEX} has no weight_map"),
        ({"weight_map": {}}, f"{INDEX} has no weight_map"),
        ({"weight_map": {"a": 1}}, f"{INDEX} has no weight_map"),
        ({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}, "two.safetensors is missing"),
    ],
)
def test_an_index_without_its_files_is_named(folder, index, what):
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    (found,) = said(folder)
    assert what in found


def test_weights_that_a_model_does_not_read_may_be_damaged(folder):
    (folder / "model.safetensors").write_bytes(POINTER)
    assert said(folder, weights=False) == []


def test_a_pointer_asks_for_git_lfs(folder):
    (folder / "model.safetensors").write_bytes(POINTER)
    (found,) = damages(folder)
    assert found.remedy == f"run `git lfs pull` in {folder}"


@given(at=st.integers(0, len(WEIGHTS) - 1), flip=st.integers(1, 255), cut=st.integers(0, 20))
def test_a_file_is_refused_where_safetensors_refuses_its_length(tmp_path_factory, at, flip, cut):
    """safetensors is the judge. It also refuses holes between tensors, and names of dtypes that it does not know."""
    data = bytearray(WEIGHTS)
    data[at] ^= flip
    path = tmp_path_factory.mktemp("file") / "model.safetensors"
    path.write_bytes(data[: len(data) - cut])
    try:
        header_of(path)
    except OptionsError:
        with pytest.raises(SafetensorError):
            safe_open(path, "numpy")
