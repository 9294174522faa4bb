"""Gradients that come back over an edge: what the helper keeps, what it gives, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolemesh import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh_torch import Graphs


@pytest.fixture
def ctx() -> RankContext:
    found: RankContext = RankContext(role="vision")
    found.step = 7
    return found


def layer(seed: int) -> torch.nn.Linear:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 4)


def test_gradients_over_an_edge_are_those_of_one_graph(ctx: RankContext) -> None:
    front, back, x = layer(0), layer(1), torch.randn(6, 4)
    back(front(x).tanh()).square().sum().backward()
    wanted = [p.grad for p in (*front.parameters(), *back.parameters())]
    front.zero_grad(), back.zero_grad()
    first, second = Graphs(ctx), Graphs(ctx)
    for micro, rows in enumerate(x.split(2)):
        sent = first.send(front(rows).tanh(), micro)
        assert not sent.requires_grad
        second.send(back(second.receive(sent, micro)).square().sum(), micro)
    for micro in range(3):
        assert first.backward(second.backward(micro=micro), micro) == {}
    for parameter, gradient in zip((*front.parameters(), *back.parameters()), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
    assert (first.finish(), second.finish()) == (3, 3)


def test_a_received_tensor_stays_when_its_memory_is_used_again(ctx: RankContext) -> None:
    graphs, model = Graphs(ctx), torch.nn.Embedding(5, 2)
    ids, activations, rows = np.arange(3), torch.ones(3, 2), Ragged.from_rows([[1, 2], [3]])
    got = graphs.receive(Batch({"ids": ids, "x": activations}))
    kept = graphs.receive(Batch({"rows": rows, "text": ["a", "b"]}), 1)
    graphs.send({"y": model(got["ids"]) * got["x"]})
    ids[:], rows.values[:] = 0, 0
    activations.zero_()
    assert graphs.backward({"y": torch.ones(3, 2)})["x"].shape == (3, 2)
    assert model.weight.grad is not None
    assert model.weight.grad.sum(1).tolist() == [2.0, 2.0, 2.0, 0.0, 0.0]
    assert (kept["rows"], kept["text"]) == (Ragged.from_rows([[1, 2], [3]]), ["a", "b"])


def test_tensors_get_gradients_and_arrays_are_data(ctx: RankContext) -> None:
    graphs, values = Graphs(ctx), {"x": torch.ones(2), "unused": torch.ones(3), "n": torch.arange(2)}
    got = graphs.receive({**values, "mask": np.float32([1, 0])})
    assert [name for name, tensor in got.items() if tensor.requires_grad] == ["x", "unused"]
    graphs.send({"y": got["x"] * got["mask"], "shape": got["n"]})
    found = graphs.backward(Batch({"y": torch.ones(2), "of another tower": torch.ones(2)}))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"x": [1, 0], "unused": [0, 0, 0]}


def test_without_gradients_nothing_is_kept(ctx: RankContext) -> None:
    graphs, frozen = Graphs(ctx), layer(0).requires_grad_(False)
    with torch.no_grad():
        graphs.send(graphs.receive(torch.ones(2, 4)))
    graphs.send(frozen(graphs.receive(np.ones((2, 4), np.float32))))
    assert graphs.finish() == 0


def test_how_many_were_open_at_once_is_counted_for_each_step(ctx: RankContext) -> None:
    graphs, model = Graphs(ctx), layer(0)
    for micros in ((0, 1), (2,)):
        for micro in micros:
            graphs.send(model(torch.ones(1, 4)), micro)
        for micro in micros:
            graphs.backward(torch.ones(1, 4), micro)
    assert (graphs.finish(), graphs.finish()) == (2, 0)


def test_a_graph_that_is_left_of_a_step_is_an_error(ctx: RankContext) -> None:
    graphs, model = Graphs(ctx), layer(0)
    graphs.send(model(torch.ones(1, 4)), 3)
    with pytest.raises(RuntimeError, match=r"role vision: micro-batches \[3\] of step 7 got no gradients"):
        graphs.finish()
    ctx.step = 8
    with pytest.raises(RuntimeError, match="must have no lag"):
        graphs.backward(torch.ones(1, 4), 3)


def test_a_gradient_that_does_not_fit_is_named(ctx: RankContext) -> None:
    graphs, model = Graphs(ctx), layer(0)
    with pytest.raises(RuntimeError, match="role vision, step 7: micro-batch 0 has no graph"):
        graphs.backward(torch.ones(1, 4))
    graphs.send({"y": model(graphs.receive({"x": torch.ones(1, 4)})["x"])})
    with pytest.raises(RuntimeError, match="micro-batch 0 has been sent already"):
        graphs.receive(torch.ones(1, 4))
    with pytest.raises(ValueError, match="no gradient of 'y'"):
        graphs.backward({"z": torch.ones(1, 4)})
    with pytest.raises(ValueError, match=r"shape \(2, 4\), the tensor \(1, 4\)"):
        graphs.backward({"y": torch.ones(2, 4)})
    graphs.receive({"x": torch.ones(1)}, 1)
    with pytest.raises(ValueError, match="two values of one micro-batch have the tensor 'x'"):
        graphs.receive({"x": torch.ones(1)}, 1)
