"""vLLM's service `sample` beside `generate` with the same requests, and turns in parts. One core, SmolLM2-135M."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, ratios

MODEL = Path(__file__).resolve().parents[1] / ".cache" / "SmolLM2-135M-Instruct"
PROMPT, PART = 100, 128


def measure(quick: bool) -> Report:
    """At least 0.9 of the tokens a second of `generate`; a turn in parts of 128 tokens at least 0.85 of a whole one."""
    report = Report("sample", "Tokens a second of concurrent calls of `sample`, and of `generate`", quick)
    rounds, tokens, at_once = (1, 32, 4) if quick else (5, 256, 16)
    rollout = engine(tokens)
    found: dict[str, list[float]] = {"generate": [], "sample": [], "in parts": []}
    for number in range(rounds):
        prompts = np.random.default_rng(number).integers(10, 40_000, (at_once, PROMPT), np.int32)
        for what, run in (("generate", generate), ("sample", sample), ("in parts", parts)):
            rollout.engine.llm.reset_prefix_cache()
            began = time.perf_counter()
            run(rollout, prompts, tokens)
            found[what].append(at_once * tokens / (time.perf_counter() - began))
    for what, samples in found.items():
        report.row(what, "tokens/s", samples)
    report.claim("sample / generate", ratios(found["sample"], found["generate"]), at_least=0.9)
    report.claim(f"turns in parts of {PART} / whole turns", ratios(found["in parts"], found["sample"]), at_least=0.85)
    report.settings = {"calls at once": at_once, "prompt": PROMPT, "tokens per call": tokens, "threads": 1}
    rollout.teardown()
    return report


def engine(tokens: int) -> Any:
    """Return a workload with an engine."""
    from rolemesh import RankContext
    from rolemesh_vllm import VLLMWorkload

    os.environ.update(VLLMWorkload.env)
    given = {"model": str(MODEL), "max_tokens": tokens, "min_tokens": tokens, "threads": 1}
    options = VLLMWorkload.Options.model_validate(given | {"engine": {"max_model_len": 512}})
    workload = VLLMWorkload(options)
    workload.setup(RankContext(seed=1))
    return workload


def generate(rollout: Any, prompts: np.ndarray[Any, np.dtype[np.int32]], tokens: int) -> None:
    """Generate one completion of each prompt."""
    from rolemesh import Batch, Ragged

    rollout.generate(Batch({"prompt_ids": Ragged.from_rows(list(prompts), dtype=np.int32)}))


def sample(rollout: Any, prompts: np.ndarray[Any, np.dtype[np.int32]], tokens: int) -> None:
    """Sample one turn after each prompt, in one call each."""
    parts(rollout, prompts, tokens, None)


def parts(rollout: Any, prompts: np.ndarray[Any, np.dtype[np.int32]], tokens: int, part: int | None = PART) -> None:
    """Sample one turn after each prompt, in calls of at most `part` tokens."""
    from rolemesh_agents.conversations.parts import in_parts
    from rolemesh_agents.conversations.sampling import SampledTurn

    async def turn(prompt: Any, given: Any) -> SampledTurn:
        return SampledTurn(**await rollout.sample(prompt, given))

    async def together() -> None:
        params = {"max_tokens": tokens, "min_tokens": tokens}
        await asyncio.gather(*(in_parts(turn, p, params | {"seed": n}, part) for n, p in enumerate(prompts)))

    asyncio.run(together())
