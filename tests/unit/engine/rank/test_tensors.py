"""A tensor that a rank gets is its own: what it writes there nobody else sees, now or later."""

import pytest
import torch

from rolemesh.api.partition import Broadcast
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall

STEPS = 7


@pytest.fixture(autouse=True)
def computed():
    """This process has torch, and has computed with several threads, when ranks are forked from it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.arange(1 << 20).sum()
    yield
    torch.set_num_threads(before)


def flow():
    """One tensor to four inputs: two of one call, one of another call of that rank, one of another rank."""
    ops = (
        OpCall(0, "data", "next", "data.next", Broadcast()),
        OpCall(1, "trainer", "both", "trainer.both", None),
        OpCall(2, "trainer", "train", "trainer.train", None),
        OpCall(3, "judge", "look", "judge.look", None),
    )
    ends = enumerate(((1, "x"), (1, "y"), (2, "x"), (3, "x")))
    edges = (Edge(number, 0, dst, param, Broadcast(), Broadcast(), credits=2) for number, (dst, param) in ends)
    return LogicalGraph("tensors", ops, tuple(edges))


@pytest.mark.parametrize(
    ("size", "nodes"),
    [(128, {}), (160_000, {}), (160_000, {("trainer", 0): "n1"}), (6_500_000, {})],
    ids=["1 KB", "1.3 MB", "1.3 MB between nodes", "52 MB"],
)
def test_a_rank_may_write_into_its_tensors_whatever_their_size(village, size, nodes):
    made = {role: (name, {"size": size}) for role, name in
            (("data", "Tensors"), ("trainer", "Writer"), ("judge", "Writer"))}  # fmt: skip
    nodes = {**{(role, 0): "n0" for role in made}, **nodes} if nodes else {}
    job = village(flow(), made, stateful=("trainer", "judge"), steps=STEPS, nodes=nodes)
    job.start()
    job.finished("trainer", 3)
    job.kill(("trainer", 0))
    job.finished("trainer", 5)
    job.kill(("data", 0))
    job.done()
