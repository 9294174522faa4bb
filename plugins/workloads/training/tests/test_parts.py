"""A model made in parts is the model that transformers makes, bit for bit, whatever the number of parts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaModel,
    MixtralConfig,
    Qwen2Config,
)

from rolemesh.errors import OptionsError
from rolemesh_training.blocks import chunk, first_row
from rolemesh_training.checkpoint import Checkpoint
from rolemesh_training.model import load
from rolemesh_training.options import HuggingFaceOptions
from rolemesh_training.parts import Parts
from rolemesh_training.workload import check_folder

SIZE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 8,
    "intermediate_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "pad_token_id": 0,
}
KINDS = {
    "llama": LlamaConfig(**SIZE),
    "llama-tied": LlamaConfig(**SIZE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZE, rope_theta=500.0),
    "gemma": GemmaConfig(**SIZE),
    "gpt2": GPT2Config(vocab_size=61, n_embd=8, n_layer=2, n_head=2, n_positions=64, pad_token_id=0),
    "gpt-neox": GPTNeoXConfig(**SIZE, rotary_pct=1.0),  # whose head has another name in files
    "mixtral": MixtralConfig(**SIZE, num_local_experts=2),
}
SEED = 11


def folder(path: Path, kind: str, **saved: Any) -> Path:
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(KINDS[kind], dtype=saved.pop("dtype", torch.float32)).save_pretrained(
        path, **saved
    )
    return path


def made(options: HuggingFaceOptions, pieces: int) -> tuple[Parts, dict[str, torch.Tensor]]:
    """The state that `pieces` ranks, each of which fills its own chunks only, have together."""
    found: dict[str, torch.Tensor] = {}
    for rank in range(pieces):

        def run(shape: torch.Size, rank: int = rank) -> tuple[int, int]:
            start, end = (first_row(shape, r, pieces) for r in (rank, rank + 1))
            return start * shape[1:].numel(), (end - start) * shape[1:].numel()

        def local(parameter: torch.Tensor, rank: int = rank) -> torch.Tensor:
            return chunk(parameter, rank, pieces).view(-1)

        parts = Parts(options, SEED, lambda _, shape, run=run: [run(shape)])
        hollow = [name for name, parameter in parts.model.named_parameters() if parameter.device.type == "meta"]
        parts.allocate(torch.device("cpu"))
        for name in hollow:
            parts.model.get_parameter(name).data.fill_(float("nan"))
        parts.fill(local)
        buffers = dict(parts.model.named_buffers())
        for name, tensor in (parts.model.state_dict() | buffers).items():
            whole = found.setdefault(name, tensor.clone())
            if name not in buffers:
                chunk(whole, rank, pieces).copy_(chunk(tensor, rank, pieces))
    return parts, found


def assert_is_what_transformers_makes(options: HuggingFaceOptions, pieces: int, whole: bool = False) -> None:
    parts, found = made(options, pieces)
    assert parts.whole == whole
    model = load(options, SEED)
    expected = model.state_dict() | dict(model.named_buffers())
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in parts.model.named_parameters()] == names, "tied as they are"
    trained = [parameter.requires_grad for parameter in model.parameters()]
    assert [parameter.requires_grad for parameter in parts.model.parameters()] == trained


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_random_weights_are_those_of_from_config(tmp_path, kind, pieces):
    options = HuggingFaceOptions(model=str(folder(tmp_path, kind)), init="random")
    assert_is_what_transformers_makes(options, pieces)


@pytest.mark.parametrize("task", ["causal_lm", "value", "classification"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_and_new_heads_are_read_and_made_as_from_pretrained_does(tmp_path, kind, task):
    options = HuggingFaceOptions(model=str(folder(tmp_path, kind)), task=task)
    assert_is_what_transformers_makes(options, 2, whole=kind == "mixtral")


@pytest.mark.parametrize("task", ["causal_lm", "value"])
def test_adapters_are_the_same_beside_weights_that_are_read_in_parts(tmp_path, task):
    options = HuggingFaceOptions(model=str(folder(tmp_path, "llama-tied")), task=task, lora={"rank": 4})
    _, found = made(options, 1)
    expected = load(options, SEED).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_several_files_in_half_precision_are_read_as_float32(tmp_path):
    path = folder(tmp_path, "llama", dtype=torch.bfloat16, max_shard_size="2KB")
    assert len(list(path.glob("model-*-of-*.safetensors"))) > 1
    assert_is_what_transformers_makes(HuggingFaceOptions(model=str(path)), 3)


def test_files_of_a_model_without_its_head_are_read_by_their_names(tmp_path):
    torch.manual_seed(3)
    LlamaModel(KINDS["llama-tied"]).save_pretrained(tmp_path)
    assert "embed_tokens.weight" in Checkpoint(tmp_path).tensors
    assert_is_what_transformers_makes(HuggingFaceOptions(model=str(tmp_path)), 2)


@pytest.mark.parametrize("equal", [True, False])
def test_a_tied_head_that_is_in_the_files_too_is_tied_if_it_is_the_same(tmp_path, equal):
    from safetensors.torch import load_file, save_file

    path = folder(tmp_path, "llama-tied")
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    if not equal:
        tensors["lm_head.weight"][-1, -1] += 1
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert_is_what_transformers_makes(HuggingFaceOptions(model=str(path)), 2, whole=not equal)


def test_a_file_that_is_cut_short_is_named(tmp_path):
    path = folder(tmp_path, "llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(OptionsError, match=r"model\.safetensors has .* bytes, and its header says"):
        made(HuggingFaceOptions(model=str(tmp_path)), 1)


def test_a_file_that_is_cut_short_while_it_is_read_is_named(tmp_path):
    checkpoint = Checkpoint(folder(tmp_path, "llama"))
    os.truncate(tmp_path / "model.safetensors", 3000)
    last = max(checkpoint.tensors, key=lambda name: checkpoint.tensors[name].start)
    with pytest.raises(EOFError, match=r"model\.safetensors ends within the tensor"):
        checkpoint.read(last, 0, torch.empty(torch.Size(checkpoint.tensors[last].shape).numel()))


def test_a_run_is_read_from_the_middle_of_a_tensor(tmp_path):
    path = folder(tmp_path, "llama")
    checkpoint = Checkpoint(path)
    whole = AutoModelForCausalLM.from_pretrained(path).state_dict()["model.embed_tokens.weight"]
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(10, dtype=dtype)
        checkpoint.read("model.embed_tokens.weight", 13, out)
        assert torch.equal(out, whole.view(-1)[13:23].to(dtype))
    assert json.loads((path / "config.json").read_text())["vocab_size"] == 61


def test_a_folder_whose_weights_have_another_name_is_refused(tmp_path):
    path = folder(tmp_path, "llama")
    (path / "model.safetensors").rename(path / "consolidated.safetensors")
    with pytest.raises(OptionsError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        check_folder(HuggingFaceOptions(model=str(path)))
