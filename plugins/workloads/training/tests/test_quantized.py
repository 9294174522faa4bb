"""A model from quantized weights trains in float32, and its export has no trace of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from rolemesh.errors import OptionsError
from rolemesh_training.export import export
from rolemesh_training.model import load
from rolemesh_training.optimizer import divided_by_decay
from rolemesh_training.options import HuggingFaceOptions

SHAPE = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}


def fp8(folder: Path) -> None:
    """The form of Qwen3-0.6B-FP8: blocks of float8 with a scale each."""
    model = LlamaForCausalLM(LlamaConfig(hidden_size=128, intermediate_size=128, tie_word_embeddings=False, **SHAPE))
    tensors = {}
    for name, tensor in model.state_dict().items():
        if "proj" in name:
            scale = tensor.abs().max() / 448
            tensors[name] = (tensor / scale).to(torch.float8_e4m3fn)
            tensors[name.replace("weight", "weight_scale_inv")] = scale.reshape(1, 1).float()
        else:
            tensors[name] = tensor.to(torch.bfloat16)
    write(folder, model, tensors, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})


def mxfp4(folder: Path) -> None:
    """The form of gpt-oss: experts in blocks of four bits."""
    shape = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_local_experts": 2}
    model = GptOssForCausalLM(GptOssConfig(num_experts_per_tok=1, **shape, **SHAPE))
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inside, outside = tensor.shape
            blocks = (experts, outside, inside // 32)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.full(blocks, 122, dtype=torch.uint8)
        else:
            tensors[name] = tensor.to(torch.bfloat16)
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    write(folder, model, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": plain})


def write(folder: Path, model: torch.nn.Module, tensors: dict[str, torch.Tensor], method: dict[str, object]) -> None:
    model.save_pretrained(folder)  # type: ignore[operator]
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    told = json.loads((folder / "config.json").read_text())
    told |= {"quantization_config": method, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(told))


@pytest.mark.parametrize("quantize", [fp8, mxfp4])
def test_quantized_weights_are_trained_in_float32_and_exported_plain(
    quantize: Callable[[Path], None], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    quantize(tmp_path / "model")
    judge = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    options = HuggingFaceOptions.model_validate({"model": str(tmp_path / "model"), "attention": "eager"})
    ours = dict(load(options, 0).named_parameters())
    assert {each.dtype for each in ours.values()} == {torch.float32}
    for name, parameter in judge.named_parameters():
        assert torch.equal(ours[name].bfloat16(), parameter.bfloat16()), name
    (tmp_path / "out").mkdir()
    export(tmp_path / "model", {name: each.detach() for name, each in ours.items()}, tmp_path / "out")
    told = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in told
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(each, ours[name]) for name, each in again.named_parameters())


def test_an_export_forgets_the_quantization_of_a_part(tmp_path: Path) -> None:
    Gemma3Config(text_config={"hidden_size": 32, "intermediate_size": 32, **SHAPE}).save_pretrained(tmp_path / "model")
    path = tmp_path / "model/config.json"
    told = json.loads(path.read_text())
    told["text_config"] |= {"quantization_config": {"quant_method": "fp8"}, "torch_dtype": "bfloat16"}
    path.write_text(json.dumps(told))
    (tmp_path / "out").mkdir()
    export(tmp_path / "model", {"a": torch.ones(2)}, tmp_path / "out")
    part = json.loads((tmp_path / "out/config.json").read_text())["text_config"]
    assert part["dtype"] == "float32"
    assert not part.keys() & {"quantization_config", "torch_dtype"}


def test_weights_that_cannot_be_made_plain_are_refused(tmp_path: Path) -> None:
    fp8(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(OptionsError, match="quantized with gptq, and cannot be trained"):
        load(HuggingFaceOptions.model_validate({"model": str(tmp_path)}), 0)


def test_vectors_and_biases_do_not_decay_as_in_transformers_trainer() -> None:
    from transformers import Trainer

    shape = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_local_experts": 2}
    model = GptOssForCausalLM(GptOssConfig(num_experts_per_tok=1, **shape, **SHAPE))
    named = dict(model.named_parameters())
    decayed, plain = divided_by_decay(named, {name: each.dim() for name, each in named.items()}, 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in named.items()}
    judged = {name for name in Trainer.get_decay_parameter_names(None, model) if named[name].dim() > 1}
    assert {names[id(each)] for each in decayed["params"]} == judged  # type: ignore[attr-defined]
    assert any("experts" in name and "bias" in name for name in named)


def test_an_attention_that_a_model_lacks_is_refused_with_our_option(tmp_path: Path) -> None:
    mxfp4(tmp_path)
    with pytest.raises(OptionsError, match=r"no attention 'sdpa'\n.*set `attention: eager`"):
        load(HuggingFaceOptions.model_validate({"model": str(tmp_path), "attention": "sdpa"}), 0)
