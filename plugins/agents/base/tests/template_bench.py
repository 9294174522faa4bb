"""Tokenizers for the tests of chat templates: a byte-level BPE with the control tokens of each template.

The models' own tokenizers are not in the repository. A template's tokens depend on two properties of a tokenizer: its
control tokens are single tokens, and a regular expression splits words. This one has the expression of Llama 3.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rolemesh_agents.templates import Template

FOLDER = Path(__file__).parent / "chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
ENDS = {
    "deepseek_v3_1": "<｜end▁of▁sentence｜>",
    "gemma": "<end_of_turn>",
    "gemma4": "<turn|>",
    "glm4moe": "<|endoftext|>",
    "gptoss": "<|return|>",
    "granite3_3": "<|end_of_text|>",
    "llama3_1": "<|eot_id|>",
    "mistral_nemo": "</s>",
    "phi3_5": "<|endoftext|>",
}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^<>｜]{1,40}｜>|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]"
    r"|<(?:start|end)_of_turn>|\[gMASK\]|<sop>|<\|\"\|>|<\|(?:tool|turn|tool_call|tool_response|channel)>"
    r"|<(?:tool|turn|tool_call|tool_response|channel)\|>"
)
_MORE = ("<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|constrain|>")
"""Special tokens of ChatML, LFM2 and GPT-OSS that no template writes."""
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([path.read_text() for path in sorted(FOLDER.glob("*"))], trainer)
    return tokenizer.to_str()


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the template `name`."""
    source = (FOLDER / f"{name}.jinja").read_text()
    tokenizer = Tokenizer.from_str(_trained())
    end = ENDS.get(name, "<|im_end|>")
    special = dict.fromkeys([*sorted(set(_SPECIAL.findall(source))), "<s>", end])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    plain = sorted(set(_PLAIN.findall(source)))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token=end, chat_template=source)


@cache
def _all() -> Tokenizer:
    tokenizer = Tokenizer.from_str(_trained())
    sources = [(FOLDER / f"{name}.jinja").read_text() for name in NAMES]
    special = sorted({text for source in sources for text in _SPECIAL.findall(source)} | {*ENDS.values(), *_MORE})
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in [*special, "<s>"]])
    plain = sorted({text for source in sources for text in _PLAIN.findall(source)})
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    return tokenizer


def tokenizer_of_all(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the template `name` and the control tokens of all templates: one model reads them all."""
    source = (FOLDER / f"{name}.jinja").read_text()
    end = ENDS.get(name, "<|im_end|>")
    return PreTrainedTokenizerFast(tokenizer_object=_all(), bos_token="<s>", eos_token=end, chat_template=source)


@cache
def template_of(name: str) -> Template:
    """Return the template `name` with its tokenizer."""
    return Template(tokenizer_of(name))
