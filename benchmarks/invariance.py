"""The cost of `batch_invariant` on one NVIDIA GPU: a random llama of 1.5 billion parameters in bfloat16."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, ratios

WORDS = 32_000
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}
SHARE = 0.2
"""Part of the GPU's memory for each engine; all of them are there at once, and one at a time works."""
MODES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "eager, batch_invariant": {"enforce_eager": True, "batch_invariant": True},
    "graphs": {},
    "graphs, batch_invariant": {"batch_invariant": True},
}


def measure(quick: bool) -> Report:
    """Compare tokens a second in the same round; no bound is claimed."""
    report = Report("invariance", "Tokens a second of vLLM on a GPU, with and without batch_invariant", quick)
    rounds, prompts, tokens = (2, 16, 64) if quick else (5, 64, 256)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder, "model"))
        engines = {name: Child(Path(folder, "model"), mode) for name, mode in MODES.items()}
        for name, child in engines.items():
            child.ask(prompts, tokens)
            report.row(f"{name}: start", "s", [child.started])
        for _ in range(rounds):
            for name, child in engines.items():
                found.setdefault(name, []).append(prompts * tokens / child.ask(prompts, tokens))
        for child in engines.values():
            child.end()
    for name, samples in found.items():
        report.row(name, "tokens/s", samples)
    for name in ("eager", "graphs"):
        report.claim(f"batch_invariant / {name}", ratios(found[f"{name}, batch_invariant"], found[name]), at_least=0.0)
    report.settings = {"prompts at once": prompts, "tokens each": tokens, "parameters": 1.5e9}
    return report


def make_model(folder: Path) -> None:
    """Put a random model and a tokenizer of words into `folder`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w1").save_pretrained(folder)
    with torch.device("cuda"):
        torch.manual_seed(0)
        LlamaForCausalLM(
            LlamaConfig(**SHAPE, bos_token_id=None, eos_token_id=1, dtype="bfloat16")
        ).bfloat16().cpu().save_pretrained(folder)
    torch.cuda.empty_cache()


class Child:
    """A process with one engine, which generates for each line of its standard input."""

    def __init__(self, model: Path, mode: dict[str, Any]) -> None:
        """Return when the engine is there."""
        from rolemesh_vllm import VLLMOptions, VLLMWorkload

        chosen = dict(mode)
        invariant = chosen.pop("batch_invariant", False)
        engine = {"max_model_len": 1024, "gpu_memory_utilization": SHARE, **chosen}
        options = VLLMOptions(model=str(model), batch_invariant=invariant, engine=engine)
        _, env = VLLMWorkload.process(options)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.invariance", options.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self._answer()
        self.started = time.perf_counter() - began

    def ask(self, prompts: int, tokens: int) -> float:
        """Return the seconds that `tokens` tokens after each of `prompts` prompts took."""
        assert self._process.stdin is not None
        print(json.dumps([prompts, tokens]), file=self._process.stdin, flush=True)
        return float(self._answer())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return line.split()[1]
        raise RuntimeError(f"the engine's process ended with {self._process.wait()}; its error is above")


def serve(options: str) -> None:
    """Start an engine; for each line with two numbers, generate and print the seconds."""
    from rolemesh_vllm.engine import Engine, sampling
    from rolemesh_vllm.options import VLLMOptions

    given = VLLMOptions.model_validate_json(options)
    engine = Engine(Path(given.model), given, seed=1, cpus=1)
    engine.label(0)
    print("answer 0", flush=True)
    for line in sys.stdin:
        prompts, tokens = json.loads(line)
        rng = np.random.default_rng(0)
        rows = [rng.integers(2, WORDS, 100 + n).tolist() for n in range(prompts)]
        params = sampling(given.model_copy(update={"max_tokens": tokens, "min_tokens": tokens}), list(range(prompts)))
        engine.llm.reset_prefix_cache()
        began = time.perf_counter()
        engine.complete(rows, params)
        print(f"answer {time.perf_counter() - began}", flush=True)
    engine.close()


if __name__ == "__main__":
    serve(sys.argv[1])
