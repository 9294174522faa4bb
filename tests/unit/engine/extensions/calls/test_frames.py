"""Frames on the channels of calls. A rank refuses and counts a wrong frame, and reads a right one as it was sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rolemesh.api.service import ServiceSpec
from rolemesh.api.workload import RankContext
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_dataplane.codec import decode, encode
from rolemesh_dataplane.payload import HEAD
from rolemesh_durable.extensions.calls.frames import (
    ANSWER,
    Answer,
    Request,
    frame_of,
    kept_answer,
    key_of,
    read_request,
)
from rolemesh_durable.extensions.calls.serving import Serving
from rolemesh_durable.protocol.rank.shape import JobShape

GRAPH = LogicalGraph(
    "calls", (OpCall(0, "a", "act", "a.act", None, calls=("box",)),), (), {"box": {"run": ServiceSpec("run")}}
)
KEY = b"k" * 16


class Endpoint:
    """Takes note of what is refused."""

    def __init__(self) -> None:
        self.site = SimpleNamespace(role="box", rank=0, generation=0)
        self.refused: list[str] = []

    def refuse(self, what: object) -> None:
        self.refused.append(str(what))

    def register_consumer(self, way: int, port: object) -> None:
        self.consumer = port

    def register_producer(self, way: int, port: object) -> None:
        self.producer = port

    def generation(self, role: str, rank: int) -> int:
        return -1


@pytest.fixture
def endpoint() -> Endpoint:
    found = Endpoint()
    job = JobShape(GRAPH, {"a": 1, "box": 1}, 10, retention_bytes=1)
    rank = SimpleNamespace(
        ctx=RankContext(role="box"),
        job=job,
        endpoint=found,
        workload=SimpleNamespace(run=lambda x: x),
        status_page=SimpleNamespace(fields=[0] * 16),
        meter=SimpleNamespace(span=lambda *_: None),
        tasks=None,
        ports=SimpleNamespace(waits=None),
    )
    Serving(rank)  # type: ignore[arg-type]
    return found


def item(header: bytes) -> Any:
    return SimpleNamespace(header=header, buffers=lambda: ())


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
def test_a_call_that_is_none_is_refused(endpoint: Endpoint, header: bytes) -> None:
    endpoint.consumer.arrived(0, 0, 0, 0, True, item(header))
    assert len(endpoint.refused) == 1


def test_a_call_of_a_rank_that_there_is_not_is_refused_and_so_is_one_without_a_value(endpoint: Endpoint) -> None:
    good = msgspec.msgpack.encode(Request(KEY, "run", 0, -1, b""))
    endpoint.consumer.arrived(7, 0, 0, 0, True, item(good))
    endpoint.consumer.arrived(0, 0, 0, 0, True, None)
    endpoint.producer.asked(0, 0, 0, 0)
    assert len(endpoint.refused) == 3
    endpoint.producer.acked(7, 0, 5)
    endpoint.consumer.arrived(0, 0, 0, 0, True, item(good))
    assert len(endpoint.refused) == 3


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
