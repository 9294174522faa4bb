"""An exported model is what transformers loads by the class that was trained, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig

from rolemesh_training.export import export
from rolemesh_training.model import architecture, load
from rolemesh_training.options import HuggingFaceOptions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A language model of three labels, in half precision; there are no weights, as with ``init: random``."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
        "torch_dtype": "bfloat16", "pad_token_id": 0, "id2label": {"0": "a", "1": "b", "2": "c"},
        "label2id": {"a": 0, "b": 1, "c": 2},
    }  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    return tmp_path / "model"


def test_an_export_has_the_folders_beside_the_weights(folder: Path, tmp_path: Path) -> None:
    kept = {"additional_chat_templates/tool_use.jinja", "code/model.py"}
    for name in (*kept, ".cache/a.json", "onnx/model.onnx", "b.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    export(folder, {"a": torch.ones(2)}, tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {*kept, "config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("task", "auto", "labels"),
    [
        ("causal_lm", "AutoModelForCausalLM", 3),
        ("value", "AutoModelForTokenClassification", 1),
        ("classification", "AutoModelForSequenceClassification", 3),
    ],
)
def test_a_trained_model_loads_by_the_class_of_its_task_with_its_head(
    folder: Path, tmp_path: Path, task: str, auto: str, labels: int
) -> None:
    torch.manual_seed(1)
    trained = architecture(HuggingFaceOptions.model_validate({"model": str(folder), "init": "random", "task": task}))
    parameters = {name: parameter.detach() for name, parameter in trained.named_parameters()}
    export(folder, parameters, tmp_path / "out", task)
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.architectures, config.num_labels) == ([type(trained).__name__], labels)
    loaded, told = getattr(transformers, auto).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(told.values()), told
    assert type(loaded) is type(trained)
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, parameters[name]), name
    rows = torch.arange(1, 9)[None]
    with torch.no_grad():
        logits = loaded.eval()(input_ids=rows).logits
    assert torch.isfinite(logits).all()
    assert torch.equal(logits, trained.eval()(input_ids=rows).logits)


SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": {},
    "gemma2": {},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2},
    "gpt_neox": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_export_has_the_names_and_shapes_that_transformers_writes(kind: str, tmp_path: Path) -> None:
    config = transformers.CONFIG_MAPPING[kind](**SHAPE | FAMILIES[kind])
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(tmp_path / "model")
    trained = load(HuggingFaceOptions.model_validate({"model": str(tmp_path / "model")}), 0)
    export(tmp_path / "model", {name: p.detach() for name, p in trained.named_parameters()}, tmp_path / "out")
    ours, judge = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "model"))
    assert ours.keys() == judge.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in judge.items())
