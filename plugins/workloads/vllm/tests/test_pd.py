"""Prefill and decode in two processes: the outputs are one engine's, and no prompt is lost or computed twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from rolemesh.api.batch import Batch

pytestmark = pytest.mark.slow


class Pair(NamedTuple):
    """A prefill rank, a decode rank, and an engine that does both, all with the same model."""

    prefill: Any
    decode: Any
    one: Any


@pytest.fixture(scope="module")
def pair(make_rank: Callable[..., Any]) -> Pair:
    ranks = Pair(
        make_rank("VLLMPrefill", lease=10),
        make_rank("VLLMDecode", samples=3, max_tokens=8),
        make_rank("VLLMWorkload", samples=3, max_tokens=8),
    )
    for rank in ranks:
        assert set(rank.ready()) == os.sched_getaffinity(0), "NixlConnector's binding to one core must be undone"
    return ranks


def prefilled(pair: Pair, prompts: Batch) -> Batch:
    return pair.prefill.call("prefill", prompts)[0]


def tokens(prompts: Batch) -> int:
    return len(prompts["prompt_ids"].values)


@pytest.mark.soak
def test_greedy_outputs_and_logprobs_are_those_of_one_engine_and_no_prompt_is_computed_twice(
    pair: Pair, prompts: Any
) -> None:
    batch = prompts(5)
    handed_over = prefilled(pair, batch)
    assert set(handed_over) == {"index", "answer", "prompt_ids", "kv_transfer"}
    out, counts = pair.decode.call("evaluate", handed_over)
    assert counts["kv_fetched_tokens"] == tokens(handed_over)
    assert (counts["kv_computed_here"], counts["kv_failed"]) == (0, 0)
    assert out == pair.one.call("evaluate", batch)[0]


@pytest.mark.soak
def test_samples_share_one_fetch_and_are_those_of_one_engine(pair: Pair, prompts: Any) -> None:
    batch = prompts(4, first=20)
    handed_over = prefilled(pair, batch)
    out, counts = pair.decode.call("generate", handed_over, step=3)
    assert counts["kv_fetched_tokens"] == tokens(handed_over)
    assert out == pair.one.call("generate", batch, step=3)[0]


@pytest.mark.soak
def test_weights_are_updated_in_both_halves(pair: Pair, prompts: Any, new_weights: Any, greedy: Any) -> None:
    batch = prompts(3)
    prefilled(pair, batch)  # never fetched: caches of old weights are still held when the new ones come
    model, weights = new_weights(31, 1)
    for rank in pair:
        rank.call("load_weights", weights)
    handed_over = prefilled(pair, batch)
    out, counts = pair.decode.call("evaluate", handed_over)
    assert counts["kv_fetched_tokens"] == tokens(handed_over)
    assert [row.tolist() for row in out["completion_ids"]] == [greedy(model, row, 8) for row in out["prompt_ids"]]
    assert out == pair.one.call("evaluate", batch)[0]


@pytest.mark.soak
def test_a_cache_of_older_weights_is_not_used(pair: Pair, prompts: Any, new_weights: Any) -> None:
    batch = prompts(2, first=30)
    stale = prefilled(pair, batch)
    _, weights = new_weights(32, 2)
    for rank in pair:
        rank.call("load_weights", weights)
    out, counts = pair.decode.call("evaluate", stale)
    assert (counts["kv_computed_here"], counts["kv_fetched_tokens"]) == (2, 0)
    assert out == pair.one.call("evaluate", batch)[0]


@pytest.mark.soak
def test_prompts_for_which_the_prefill_engine_has_no_memory_are_computed_by_decode(
    pair: Pair, make_rank: Callable[..., Any], prompts: Any, new_weights: Any
) -> None:
    # 64 KiB are two layers' keys and values of 128 tokens: 4 blocks, of which vLLM keeps one.
    small = make_rank("VLLMPrefill", engine={"max_model_len": 64, "kv_cache_memory_bytes": 64 << 10})
    small.ready()
    _, weights = new_weights(33, 3)
    for rank in (*pair, small):
        rank.call("load_weights", weights)
    batch = prompts(4, first=40)
    handed_over, left = small.call("prefill", batch)
    kept = [ticket is not None for ticket in handed_over["kv_transfer"]]
    assert kept == [True, False, False, False]
    assert left["prefill_left"] == 3
    out, counts = pair.decode.call("evaluate", handed_over)
    assert (counts["kv_computed_here"], counts["kv_fetched_tokens"]) == (3, len(out["prompt_ids"][0]))
    assert out == pair.one.call("evaluate", batch)[0]
