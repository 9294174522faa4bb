"""Ranks of different nodes exchange values over `tcp`, and an endpoint that fails leaves nothing behind."""

import subprocess
import sys

import numpy as np
import pytest

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Split
from rolemesh_dataplane.pieces import PIECE


@pytest.mark.parametrize("rows", [10, 300_000])
def test_values_cross_nodes_and_stay_on_one_where_they_can(fleet, flow, role, rows):
    graph, edge = flow
    chain = graph(
        ("a", "make", Split()), ("b", "double", Split()), ("c", "take", None), edges=[edge(0, 0, 1), edge(1, 1, 2)]
    )
    out = fleet.run(
        chain,
        {
            "a": (lambda: role(make=lambda self: np.full(rows, self.ctx.step)), 1),
            "b": (lambda: role(double=lambda self, x: x * 2), 1),
            "c": (lambda: role(take=lambda self, x: self.seen.append((x.size, int(x.min()), int(x.max())))), 1),
        },
        steps=6,
        nodes={("a", 0): "n0", ("b", 0): "n1", ("c", 0): "n1"},
    )
    assert out["c", 0].seen == [(rows, 2 * s, 2 * s) for s in range(6)]
    assert [o.refused for o in out.values()] == [0, 0, 0]


def test_texts_and_arrays_of_a_batch_that_is_larger_than_a_piece_cross_nodes(fleet, flow, role):
    graph, edge = flow
    chain = graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)])
    text = ["x" * 90, "y"] * (PIECE // 90)
    out = fleet.run(
        chain,
        {
            "a": (lambda: role(make=lambda self: Batch({"text": text, "n": np.arange(len(text))})), 1),
            "b": (lambda: role(take=lambda self, x: self.seen.append((x["text"] == text, int(x["n"].sum())))), 1),
        },
        steps=3,
        nodes={("a", 0): "n0", ("b", 0): "n1"},
    )
    assert out["b", 0].seen == [(True, len(text) * (len(text) - 1) // 2)] * 3
    assert [o.refused for o in out.values()] == [0, 0]


def test_an_endpoint_that_cannot_be_opened_leaves_nothing_that_keeps_the_process_from_ending(tmp_path):
    script = (
        "from rolemesh_dataplane.tcp_transport import TcpTransport\n"
        "from rolemesh_durable.rank.endpoint import Endpoint\n"
        "from rolemesh_dataplane.transports import Site\n"
        f"site = Site('a', 0, 'n0', 0, '127.0.0.1', {str(tmp_path)!r}, {str(tmp_path)!r})\n"
        "Endpoint(site, transports={'tcp': TcpTransport(None)}, local='tcp')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "tcp edges need the job's keys" in done.stderr
    assert not list(tmp_path.iterdir())
