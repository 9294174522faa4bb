"""The columns that data collators of transformers and TRL make, and what each loss does with them. Uses no torch.

A row may carry any other columns. These have a meaning to a trainer, so a loss reads them or refuses them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["READS", "REMEDIES"]

_ANSWERS: Final = ("label", "labels", "label_ids")
_SAMPLED: Final = frozenset(("completion_mask", *_ANSWERS))
_SCORED: Final = frozenset(("attention_mask", "loss_mask", "completion_mask", "assistant_masks", *_ANSWERS))
READS: Final[dict[str, frozenset[str]]] = {
    "causal_lm": frozenset({"attention_mask", "labels", "loss_mask", "completion_mask", "assistant_masks"}),
    "distill": frozenset({"loss_mask", "completion_mask", "assistant_masks"}),
    "classification": _SCORED,
    "scores": _SCORED,
    **dict.fromkeys(("grpo", "ppo", "value", "logprobs", "values"), _SAMPLED),
    "dpo": frozenset(_ANSWERS),
}
"""Loss or operator → the columns of collators that it reads, or that are mere data to it, such as the answer to a
question in `label`."""

_APART = "give each text a row of its own, and leave the column out"
_TOKENS = "leave the column out; the trainer gives the model token ids alone"
_COUNT = "leave the column out, and say with loss_mask which tokens count"
_PAIRS = "give the columns prompt_ids, chosen_ids and rejected_ids"
_NAMES: Final = {
    _APART: "position_ids seq_lengths seq_idx cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k segment_id "
    "token_index tree_max_seqlens",
    _TOKENS: "token_type_ids mm_token_type_ids inputs_embeds decoder_input_ids decoder_attention_mask perm_mask "
    "target_mapping encoder_hidden_states encoder_attention_mask cross_attention_mask head_mask cache_position "
    "pixel_values pixel_values_videos pixel_attention_mask image_sizes image_grid_thw video_grid_thw images image "
    "videos image_position_ids spatial_shapes num_images num_tiles aspect_ratio_ids aspect_ratio_mask input_features "
    "input_values feature_attention_mask",
    _COUNT: "label labels label_ids shift_labels start_positions end_positions sentence_order_label "
    "next_sentence_label",
    "leave the column out; a row has its own tokens only, and no padding": "attention_mask prompt_mask "
    "prompt_attention_mask",
    "leave the column out, or train with a loss that reads it": "completion_mask assistant_masks loss_mask",
    "leave the column out; the trainer counts over all ranks and micro-batches": "num_items_in_batch",
    "leave the column out; importance_sampling computes it from logprobs": "importance_sampling_ratio",
    "leave the column out; no loss of this package has a margin": "margin",
    "write a loss of your own: this package has none for such rows": "KL_input_ids KL_attention_mask "
    "KL_completion_mask KL_completion_ids KL_token_type_ids KL_mm_token_type_ids ref_KL_logps ref_logps reference_ids",
    "call the column completion_mask": "tool_mask",
    "call the column assistant_masks": "assistant_mask",
    "call the column logprobs": "old_per_token_logps old_log_probs sampling_per_token_logps rollout_logprobs",
    "call the column ref_logprobs": "ref_per_token_logps",
    "call the column ref_chosen": "ref_chosen_logps",
    "call the column ref_rejected": "ref_rejected_logps",
    "give teacher_ids and teacher_logits to the loss distill": "teacher_topk_ids teacher_topk_logprobs "
    "teacher_input_ids teacher_attention_mask",
    _PAIRS: "chosen_input_ids chosen_attention_mask chosen_labels rejected_input_ids rejected_attention_mask "
    "rejected_labels prompt_input_ids concatenated_input_ids concatenated_attention_mask concatenated_labels",
}
REMEDIES: Final[dict[str, str]] = {name: remedy for remedy, names in _NAMES.items() for name in names.split()}
"""Column of a collator → what to do if a loss refuses it."""
