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
    **dict.fromkeys(["granitemoe_swa", "ministral", "modernbert-decoder", "vaultgemma"], _WINDOWED),
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
    "xlm": {"emb_dim": 32, "n_words": VOCABULARY, "causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layer_types": ["mamba", "hybrid"], "layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""Kind of model → what it needs besides `SMALL`."""


def config_of(kind: str, window: int | None = None, **more: Any) -> Any:
    """Return the config of a tiny model. `window` makes every window that the kind has as short as that."""
    made = getattr(transformers, CONFIG_MAPPING_NAMES[kind])
    narrow = {**dict.fromkeys(_WINDOWS, window), "use_sliding_window": True, "max_window_layers": 0} if window else {}
    own = OWN.get(kind, {})
    fields = {*made().to_dict(), *own}
    given = {name: value for name, value in {**SMALL, **own, **narrow, **more}.items() if name in fields}
    for without in ((), ("sliding_window", "head_dim"), ("sliding_window", "head_dim", "num_key_value_heads")):
        try:
            config = made(**{name: value for name, value in given.items() if name not in without})
            break
        except Exception as error:
            last = error
    else:
        raise last
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if kinds and len(kinds) != 2:
            setattr(config, name, ([*dict.fromkeys(kinds)] * 2)[:2])
    config.architectures = None
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"the smallest {kind} has {size} parameters")
    return config


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
