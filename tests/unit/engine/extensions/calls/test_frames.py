"""Frames on the channels of calls. A rank refuses and counts a wrong frame, and reads a right one as it was sent."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import RankContext
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_dataplane.codec import decode, encode
from rolemesh_dataplane.payload import DATA, HEAD, INLINE
from rolemesh_durable.extensions.calls.frames import (
    ANSWER,
    Answer,
    Request,
    frame_of,
    kept_answer,
    key_of,
    read_request,
)
from rolemesh_durable.extensions.calls.rank import RankCalls
from rolemesh_durable.extensions.calls.states import edges_of_calls
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.rank.channel import Receive
from rolemesh_durable.rank.frames import CREDIT, CREDITS
from rolemesh_durable.rank.port import EnginePort

GRAPH = LogicalGraph(
    "calls", (OpCall(0, "a", "act", "a.act", None, calls=("box",)),), (), {"box": {"run": ServiceSpec("run")}}
)
KEY = b"k" * 16
(PAIR,) = edges_of_calls(GRAPH)


@pytest.fixture
def receive() -> Receive:
    """The end of a called rank on the channel of calls."""
    job = JobShape(GRAPH, {"a": 1, "box": 1}, 10, retention_bytes=1)
    mail = SimpleNamespace(site=SimpleNamespace(role="box", rank=0, generation=0), generation=lambda role, rank: -1)
    opened: list[Receive] = []
    rank = SimpleNamespace(
        ctx=RankContext(role="box", port=EnginePort()),
        job=job,
        workload=SimpleNamespace(run=lambda x: x),
        meter=SimpleNamespace(span=lambda *_: None),
        tasks=None,
        ports=SimpleNamespace(waits=None, mail=mail, fields=[0] * 16),
        open_channel=lambda name, receive: opened.append(receive),
    )
    RankCalls(rank, calls=False, serves=True)  # type: ignore[arg-type]
    (found,) = opened
    return found


def frame(header: bytes, edge: int = PAIR.asks) -> bytes:
    return HEAD.pack(DATA, INLINE, 1, edge, 0, 0, 0, 0, len(header), 0) + header


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["short", "run", 0, -1, b""]),
        msgspec.msgpack.encode([b"short", "run", 0, -1, b""]),
        msgspec.msgpack.encode([KEY, "run", "zero", -1, b""]),
        msgspec.msgpack.encode([KEY, "no such method", 0, -1, b""]),
        msgspec.msgpack.encode([KEY, "run", -5, -1, b""]),
    ],
)
def test_a_call_that_is_none_is_refused(receive: Receive, header: bytes) -> None:
    with pytest.raises(struct.error):
        receive("a", 0, 0, frame(header))


def test_a_call_of_a_rank_that_there_is_not_is_refused_and_so_is_one_without_a_value(receive: Receive) -> None:
    good = frame(msgspec.msgpack.encode(Request(KEY, "run", 0, -1, b"")))
    for role, rank, body in (("a", 7, good), ("b", 0, good), ("a", 0, b""), ("a", 0, frame(good, PAIR.answers))):
        with pytest.raises(struct.error):
            receive(role, rank, 0, body)
    receive("a", 7, 0, CREDITS.pack(CREDIT, PAIR.answers, 7, 0, 5))
    receive("a", 0, 0, good)


def test_an_answer_that_was_kept_is_read_with_its_arrays() -> None:
    header, buffers = encode({"x": np.arange(1000)})
    frame = frame_of(Answer(KEY, ANSWER, header), buffers, 1 << 24, 0, 0, 3)
    answer, found = kept_answer(frame)
    assert answer.key == KEY
    assert decode(answer.value, found)["x"][-1] == 999
    hlen = HEAD.unpack_from(frame)[-2]
    with pytest.raises(msgspec.ValidationError):
        read_request(frame[HEAD.size + 8 * len(buffers) :][:hlen])


def test_a_key_tells_calls_apart_by_all_that_they_say() -> None:
    keys = {
        key_of(op, step, line, "box", method, header, [])
        for op in (0, 1)
        for step in (0, 1)
        for line in (".0", ".0.0")
        for method in ("run", "stop")
        for header in (b"1", b"2")
    }
    assert len(keys) == 32
