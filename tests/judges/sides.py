"""Both sides of a comparison: a batch as the trainers take it and as TRL takes it, and the gradients of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rolemesh.api.batch import Batch, Ragged
from rolemesh_training import LossContext, attention

VOCABULARY = 97
LENGTHS = (5, 1, 9, 3, 7, 2, 4, 6)
PROMPTS = (4, 7, 4, 11)
LONGEST = 9
"""TRL's `max_completion_length`, and the constant of Dr. GRPO."""
CPU = torch.device("cpu")


class Side(NamedTuple):
    """The results of one side: the mean loss, and its flat gradient over all parameters."""

    loss: float
    gradient: torch.Tensor


def tokenizer() -> Any:
    """One word for each id: TRL's trainers want a tokenizer, and no comparison depends on its text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def rollouts(
    folder: Path,
    seed: int = 1,
    *,
    lengths: Sequence[int] = LENGTHS,
    prompts: Sequence[int] = PROMPTS,
    advantage: Sequence[float] | None = None,
    off: float = 0.3,
) -> Batch:
    """Pairs of completions of prompts with a common prefix, sampled by a policy that is `off` from the model's."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(3, VOCABULARY, n) for n in prompts]
    shared = min(3, *prompts)
    for text in texts[1:3]:
        text[:shared] = texts[0][:shared]
    rows = [texts[i * len(texts) // len(lengths)] for i in range(len(lengths))]
    completions = [rng.integers(3, VOCABULARY, n) for n in lengths]
    model = loaded(folder).eval()
    own = [logprobs_of(model, prompt, completion) for prompt, completion in zip(rows, completions, strict=True)]

    def near(scale: float) -> Ragged:
        return Ragged.from_rows([each + scale * rng.standard_normal(len(each)) for each in own], np.float32)

    numbers = rng.standard_normal(len(lengths)) if advantage is None else advantage
    return Batch(
        {
            "prompt_ids": Ragged.from_rows(rows, np.int32),
            "completion_ids": Ragged.from_rows(completions, np.int32),
            "logprobs": near(off),
            "ref_logprobs": near(0.5),
            "advantage": np.asarray(numbers, dtype=np.float32),
            "advantages": Ragged.from_rows([rng.standard_normal(n) for n in lengths], np.float32),
        }
    )


def logprobs_of(model: torch.nn.Module, prompt: Any, completion: Any) -> np.ndarray:
    """The log-probability of each token of one completion, from a row of its own."""
    if not len(completion):
        return np.zeros(0)
    ids = torch.tensor(np.concatenate([prompt, completion]), dtype=torch.int64)
    with torch.no_grad():
        found = model(input_ids=ids[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    return found[torch.arange(len(completion)), ids[len(prompt) :]].numpy()


def padded(batch: Batch, columns: Sequence[str] = ("logprobs", "ref_logprobs")) -> dict[str, torch.Tensor]:
    """TRL's layout: prompts padded on the left, completions on the right, to `LONGEST`."""
    rows, most = batch.rows, max(len(each) for each in batch["prompt_ids"])
    names = {"logprobs": "old_per_token_logps", "ref_logprobs": "ref_per_token_logps", "advantages": "advantages"}
    found = {
        "prompt_ids": torch.zeros(rows, most, dtype=torch.int64),
        "prompt_mask": torch.zeros(rows, most, dtype=torch.int64),
        "completion_ids": torch.zeros(rows, LONGEST, dtype=torch.int64),
        "completion_mask": torch.zeros(rows, LONGEST, dtype=torch.int64),
        "advantages": torch.tensor(np.asarray(batch["advantage"])),
        **{names[name]: torch.zeros(rows, LONGEST) for name in columns},
    }
    for i in range(rows):
        prompt, completion = np.asarray(batch["prompt_ids"][i]), np.asarray(batch["completion_ids"][i])
        found["prompt_ids"][i, most - len(prompt) :] = torch.tensor(prompt)
        found["prompt_mask"][i, most - len(prompt) :] = 1
        found["completion_ids"][i, : len(completion)] = torch.tensor(completion)
        found["completion_mask"][i, : len(completion)] = 1
        for name in columns:
            found[names[name]][i, : len(completion)] = torch.tensor(np.asarray(batch[name][i]))
    found["num_items_in_batch"] = found["completion_mask"].sum()
    return found


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(found, parameters, strict=True)]
    )


def ours(folder: Path, loss: Callable[..., Any], batch: Batch, **options: Any) -> Side:
    """A loss as a trainer computes it: its attention, no dropout, and the total divided by the weight."""
    from rolemesh_training.model import without_dropout

    model = loaded(folder)
    model.set_attn_implementation(attention.NAME)
    without_dropout(model.train())
    output = loss(model, batch, LossContext(CPU, 0, 0, options))
    mean = output.total / output.weight
    return Side(float(mean), gradient(model, mean))


def agree(found: Side, wanted: Side, within: float = 2e-6) -> None:
    """Fails unless the loss and the gradient of both sides are the same, relative to the size of the judge's."""
    difference = float((found.gradient - wanted.gradient).norm() / wanted.gradient.norm())
    loss = abs(found.loss - wanted.loss) / max(abs(wanted.loss), 0.1)
    print(f"gradient {difference:.1e}, loss {loss:.1e}")
    assert wanted.gradient.norm() > 1e-3, "nothing to compare"
    assert difference < within
    assert loss < max(within, 5e-6)
