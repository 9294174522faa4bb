"""A tiny model of each causal language model that transformers has. Importable as `trainer_group` is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rolemesh_training.model import load
from rolemesh_training.options import HuggingFaceOptions

KINDS = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 64
_LARGEST = 6_000_000
_WINDOWS = [
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "local_attention",
    "attention_window_size",
    "sliding_window_size",
]


def _values(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **_values(128, "max_position_embeddings n_positions attention_window_size"),
    **_values(64, "intermediate_size n_inner ffn_dim decoder_ffn_dim mamba_d_ssm vocab_size_per_layer_input"),
    **_values(
        32, "hidden_size n_embd d_model word_embed_proj_dim lru_width shared_intermediate_size block_dim conv_dim"
    ),
    **_values(16, "encoder_ffn_dim moe_intermediate_size q_lora_rank kv_lora_rank shared_expert_intermediate_size"),
    **_values(8, "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim mamba_n_heads mamba_d_head mamba_d_state"),
    **_values(8, "state_size mamba_num_heads mamba_head_dim ssm_state_size linear_key_head_dim linear_value_head_dim"),
    **_values(8, "hidden_size_per_layer_input"),
    **_values(4, "num_attention_heads n_head n_heads num_heads num_experts num_local_experts n_routed_experts"),
    **_values(4, "decoder_attention_heads encoder_attention_heads linear_num_value_heads rotary_dim"),
    **_values(
        2, "n_layer n_layers num_layers num_hidden_layers decoder_layers num_key_value_heads num_experts_per_tok"
    ),
    **_values(2, "linear_num_key_heads attn_layer_period expert_layer_period eos_token_id"),
    **_values(1, "encoder_layers first_k_dense_replace n_group topk_group n_shared_experts mamba_n_groups n_groups"),
    **_values(1, "num_global_layers expert_layer_offset bos_token_id"),
    **_values(0, "attn_layer_offset pad_token_id"),
    "is_decoder": True,
    "sliding_window": None,
    "hybrid_override_pattern": "M*",
}
_EXPERTS: dict[str, Any] = {"num_key_value_heads": 4}
_WINDOWED: dict[str, Any] = {"sliding_window": 4096}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"], _EXPERTS
    ),
    **dict.fromkeys(["minicpm3", "youtu"], _EXPERTS),
    **dict.fromkeys(
        ["afmoe", "cohere2", "cohere2_moe", "gemma2", "gemma3_text", "gpt_oss", "granite_swa", "olmo3"], _WINDOWED
    ),
    **dict.fromkeys(["gemma4", "gemma4_unified", "granitemoe_swa", "ministral"], _WINDOWED),
    **dict.fromkeys(["modernbert-decoder", "vaultgemma"], _WINDOWED),
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "gemma3n_text": {
        **_WINDOWED,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [64, 64],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 256},
    "kimi_linear": {"num_experts_per_token": 2, "linear_head_dim": 8, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "longcat_flash": {
        **_EXPERTS,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 16,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "mamba2": {"num_heads": 8},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 16],
        "attention_head_size": 8,
        "feed_forward_size": 64,
        "attn_layers": ["local", "local"],
    },
    "roc_bert": _values(VOCABULARY, "pronunciation_vocab_size shape_vocab_size")
    | _values(16, "pronunciation_embed_dim shape_embed_dim"),
    "qwen4_exp": {
        **_values(2, "hc_count heads_per_ngram indexer_n_heads"),
        **_values(1, "split_ngram_parts indexer_kv_heads"),
        **_values(8, "hc_lowrank indexer_head_dim"),
        "ple_layer_ids": [1],
        "ple_embed_dim": 16,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 4,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "xlm": {"emb_dim": 32, "n_words": VOCABULARY, "causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
        "n_mamba_heads": 2,
    },
    "zamba2": {"layer_types": ["mamba", "hybrid"], "layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""Kind of model → what it needs besides `SMALL`."""
_OTHER: dict[str, Any] = {
    **_values(16, "hidden_size projector_input_dim projector_output_dim projection_dim"),
    **_values(32, "intermediate_size out_hidden_size vision_output_dim"),
    **_values(2, "num_attention_heads attention_heads num_heads num_key_value_heads"),
    **_values(1, "num_hidden_layers num_global_layers depth pooling_kernel_size"),
    "head_dim": 8,
    "image_size": 28,
    "patch_size": 14,
}
"""The parts of a model that read images and sounds."""


def config_of(kind: str, window: int | None = None, **more: Any) -> Any:
    """Return the config of a tiny model. `window` makes every window that the kind has as short as that."""
    made = getattr(transformers, CONFIG_MAPPING_NAMES[kind])
    narrow = {**dict.fromkeys(_WINDOWS, window), "use_sliding_window": True, "max_window_layers": 0} if window else {}
    own, default = OWN.get(kind, {}), made()
    wanted = {**SMALL, **own, **narrow, **more}
    fields = {*default.to_dict()}
    parts = {name: getattr(default, name, None) for name in made.sub_configs}
    texts = [name for name, part in parts.items() if part is not None and "text" in name]
    given = _chosen(wanted, fields | {*own}) | {
        name: _chosen(wanted if name in texts else _OTHER, {*part.to_dict()})
        for name, part in parts.items()
        if texts and part is not None
    }
    for without in ((), ("sliding_window", "head_dim"), ("sliding_window", "head_dim", "num_key_value_heads")):
        try:
            config = made(**{name: value for name, value in given.items() if name not in without})
            break
        except Exception as error:
            last = error
    else:
        raise last
    text = config.get_text_config() if texts else config
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(text, name, None)
        if kinds and len(kinds) != getattr(text, "num_hidden_layers", 2):
            setattr(text, name, ([*dict.fromkeys(kinds)] * 2)[:2])
    config.architectures = None
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"the smallest {kind} has {size} parameters")
    return config


def _chosen(values: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in fields}


def model_of(config: Any, folder: Path, attention: str = "sdpa", dtype: str = "float32") -> torch.nn.Module:
    """Return the model of the config as a trainer loads it, with weights that say much of what a token sees."""
    config.save_pretrained(folder)
    options = HuggingFaceOptions(model=str(folder), init="random", attention=attention, init_seed=1)
    model = load(options, 1).eval()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15, generator=draws)
    return model.to(getattr(torch, dtype))
