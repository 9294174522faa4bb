"""A token has the same bits alone and among others: in linear layers, and in attention over long contexts."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from rolemesh_vllm import VLLMWorkload


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_alone_has_the_bits_of_a_row_among_others(threads: int) -> None:
    import torch
    from vllm.model_executor.layers import utils

    from rolemesh_vllm.invariant import make_batches_invariant

    make_batches_invariant()
    make_batches_invariant()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.randn(256, 4096), requires_grad=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    rows = torch.randn(300, 4096)
    whole = utils.cpu_unquantized_gemm(layer, rows, layer.weight)
    for size in (1, 2, 3, 16, 17, 64, 200):
        assert torch.equal(utils.cpu_unquantized_gemm(layer, rows[40 : 40 + size], layer.weight), whole[40 : 40 + size])
    assert torch.equal(utils.cpu_unquantized_gemm(layer, rows[7], layer.weight), whole[7])
    torch.set_num_threads(before)


def test_each_query_of_a_long_context_is_a_request_of_its_own() -> None:
    import torch

    from rolemesh_vllm.invariant import single_queries

    starts, lengths = torch.tensor([0, 3, 7, 8], dtype=torch.int32), torch.tensor([3, 6, 9], dtype=torch.int32)
    found = single_queries(starts, lengths, torch.tensor([[1], [2], [3]]), keep=4)
    assert [each.flatten().tolist() for each in found] == [[0, 3, 5, 6, 7, 8], [3, 4, 5, 6, 9], [1, 2, 2, 2, 3]]


def test_single_queries_have_the_answer_of_all_at_once(rollout: VLLMWorkload, monkeypatch: pytest.MonkeyPatch) -> None:
    from rolemesh_vllm import invariant

    original = invariant.single_queries

    def answers() -> list[Any]:
        rollout.engine.llm.reset_prefix_cache()
        return asyncio.run(gathered([sample(rollout, np.arange(3, n), PARAMS) for n in (20, 43, 77)]))

    expected = answers()
    built: list[int] = []
    monkeypatch.setattr(invariant, "ONE_TILE", 16 * 32)
    monkeypatch.setattr(invariant, "single_queries", lambda *a: (built.append(a[3]), original(*a))[1])
    for one, other in zip(answers(), expected, strict=True):
        assert np.array_equal(one["logprobs"], other["logprobs"])
    assert built[0] == 16


PARAMS = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}


def sample(rollout: VLLMWorkload, prompt: Any, params: Any) -> Any:
    return rollout.engine.sample(prompt, params)


async def gathered(calls: list[Any]) -> list[Any]:
    return await asyncio.gather(*calls)


def test_attention_has_the_same_bits_whether_a_long_prefix_was_cached_or_not() -> None:
    import torch
    from vllm import _custom_ops as ops

    from rolemesh_vllm.invariant import single_queries

    heads, kv_heads, size, length = 9, 3, 64, 1100
    torch.manual_seed(0)
    blocks = length // 32 + 2
    caches = torch.zeros(blocks, kv_heads, 64, size).chunk(2, dim=2)
    query, key, value = (torch.randn(length, n, size) for n in (heads, kv_heads, kv_heads))
    slots = torch.arange(length) + 32
    ops.cpu_attn_reshape_and_cache(key, value, *caches, slots, "vec", k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto")

    def attention(first: int, keep: int) -> Any:
        """Return the attention of the queries from `first` on, of which those behind `keep` are computed alone."""
        mine = query[first:]
        given = torch.tensor([0, len(mine)], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
        starts, lengths, table = single_queries(*given, torch.arange(1, blocks, dtype=torch.int32)[None], keep)
        metadata = ops.cpu_attn_get_scheduler_metadata(
            len(lengths), heads, kv_heads, size, lengths, mine.dtype, starts, True, -1, "vec", False
        )
        out = torch.empty_like(mine)
        ops.cpu_attention_with_kv_cache(
            mine, *caches, out, starts, lengths, size**-0.5, True, None, -1, table, 0.0, metadata, None
        )
        return out

    alone = attention(length - 1, 1)
    for first in (0, 128, 500, length - 70, length - 3):
        assert torch.equal(attention(first, 128)[-1:], alone)
    if torch.equal(attention(0, length)[-1:], alone):  # it depends on the size of the CPU's caches
        pytest.skip("the kernel has the same bits on this CPU also without single queries")
