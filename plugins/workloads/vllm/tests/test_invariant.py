"""A row of a linear layer has the same bits alone and among others."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_alone_has_the_bits_of_a_row_among_others(threads: int) -> None:
    import torch
    from vllm.model_executor.layers import utils

    from rolemesh_vllm.invariant import make_rows_alike

    make_rows_alike()
    make_rows_alike()
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
