"""`RankContext` passes on to the engine's `RankPort`, which a stranger writes with public names only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh import Batch, RankContext, RolemeshError
from rolemesh.api.partition import Balanced
from rolemesh.api.port import LocalPort, RankPort
from rolemesh.api.service import CalledBy
from rolemesh_runtime.items import Items
from rolemesh_runtime.operator_failure import MOST_TEXT, summarize, user_traceback


class Port:
    """Keeps the requests of a workload."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.notes = {"clock": 7}

    def metric(self, values: Mapping[str, float], item: int | None) -> None:
        self.asked.append(("metric", dict(values), item))

    def count(self, values: Mapping[str, float], item: int | None) -> None:
        self.asked.append(("count", dict(values), item))

    def record(self, values: Mapping[str, Any]) -> None:
        self.asked.append(("record", dict(values)))

    def finish(self, reason: str) -> None:
        self.asked.append(("finish", reason))

    def progress(self, done: int, total: int) -> bool:
        self.asked.append(("progress", done, total))
        return done == 3

    async def call(self, *arguments: Any) -> str:
        self.asked.append(("call", *arguments))
        return "answer"

    def call_and_wait(self, *arguments: Any) -> str:
        self.asked.append(("call_and_wait", *arguments))
        return "answer"

    def session(self, role: str) -> str:
        return f"{role}/0#0/name"


def test_a_context_passes_a_workloads_requests_on() -> None:
    port: RankPort = (own := Port())
    ctx = RankContext(role="work", rank=1, port=port)
    ctx.metric(loss=1.0)
    ctx.count(rows=2)
    ctx.record(text={"a": 1})
    ctx.warn("no")
    ctx.finish("enough")
    assert not ctx.progress(1)
    assert ctx.progress(3, 4)
    assert ctx.call_and_wait("tool", "run", 1, session="s") == "answer"
    assert asyncio.run(ctx.call("tool", "run", 1, 2, timeout=3.0)) == "answer"
    assert ctx.session("tool") == "tool/0#0/name"
    assert ctx.notes == {"clock": 7}
    assert own.asked == [
        ("metric", {"loss": 1.0}, None),
        ("count", {"rows": 2}, None),
        ("record", {"text": {"a": 1}}),
        ("record", {"warning work/1 #1": "no"}),
        ("finish", "enough"),
        ("progress", 1, 0),
        ("progress", 3, 4),
        ("call_and_wait", "tool", "run", (1,), "s", None),
        ("call", "tool", "run", (1, 2), "", 3.0),
    ]


def test_a_report_names_the_item_in_hand() -> None:
    port = Port()
    ctx = RankContext(port=port)

    def work(rows: Batch) -> Batch:
        ctx.metric(item=ctx.item)
        return rows

    list(Items(ctx, "rows", Balanced()).run(work, {"rows": Batch({"x": np.arange(2)})}, range(2)))
    ctx.metric(item=ctx.item)
    assert port.asked == [("metric", {"item": number}, item) for number, item in ((0, 0), (1, 1), (0, None))]


def test_a_service_sees_its_caller_only_inside() -> None:
    ctx = RankContext()
    by = CalledBy("agent", 0, 3, "s")
    with ctx.serving(by):
        assert ctx.called_by == by
    assert ctx.called_by is None


def test_a_context_without_an_engine_keeps_reports_for_a_test() -> None:
    ctx = RankContext()
    ctx.metric(loss=1)
    ctx.metric(loss=2)
    ctx.count(rows=3)
    ctx.record(text="x")
    ctx.finish()
    port = ctx.port
    assert isinstance(port, LocalPort)
    assert (port.means, port.sums, port.records) == ({"loss": [3.0, 2.0]}, {"rows": 3.0}, {"text": "x"})
    assert port.finishing
    assert not ctx.progress(1)
    port.clear()
    assert [port.means, port.sums, port.records, port.by_item] == [{}, {}, {}, {}]


def test_a_call_in_a_role_that_calls_nobody_is_an_error_with_a_remedy() -> None:
    with pytest.raises(RolemeshError, match="may call no other role") as caught:
        RankContext().call_and_wait("tool", "run")
    assert caught.value.remedy == "say in the flow whom the operator calls: calls=[job.<role>]"


def test_a_record_that_json_cannot_express_never_reaches_the_engine() -> None:
    port = Port()
    with pytest.raises(TypeError, match="record 'bad' is no JSON value"):
        RankContext(port=port).record(good=1, bad=object())
    assert port.asked == []


TEXTS = st.text(st.characters(exclude_categories=()))
"""Texts with halves of surrogate pairs, too, which UTF-8 cannot express."""


class Text(str):
    """A text of a class of the user's own."""


@given(st.lists(TEXTS, unique=True), TEXTS)
def test_names_and_texts_of_all_kinds_can_be_written(names: list[str], text: str) -> None:
    port = LocalPort()
    ctx = RankContext(port=port)
    for name in names:
        ctx.metric(**{name: 1.0})
        ctx.metric(**{Text(name): 1.0})
        ctx.count(**{name: 1.0})
        ctx.record(**{name: [(text, {text: {"nested": [text]}})]})
    ctx.warn(text)
    ctx.finish(text)
    told = (port.means, port.sums, port.records, port.finishing)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told)) == msgspec.json.decode(msgspec.json.encode(told))
    escaped = {name.encode(errors="backslashreplace").decode() for name in names}
    assert set(port.means) == set(port.sums) == escaped
    assert port.records["warning role/0 #1"] == text.encode(errors="backslashreplace").decode()


@given(TEXTS, st.booleans())
def test_an_exception_of_any_text_can_be_told(text: str, known: bool) -> None:
    error = RolemeshError(text, remedy=text) if known else ValueError(text)
    error.add_note(text)
    for told in (summarize(error), user_traceback(error, "/nowhere")):
        told.encode()


def test_an_exception_of_a_million_characters_is_told_without_its_middle() -> None:
    told = summarize(ValueError("a" + "x" * 1_000_000 + "z"))
    assert told.startswith("ValueError: ax")
    assert told.endswith("xz")
    assert len(told) < MOST_TEXT + 100


@given(st.integers(0, 10**12), st.integers(1, 64))
def test_the_shares_of_ranks_are_disjoint_in_order_complete_and_alike(rows: int, ranks: int) -> None:
    shares = [RankContext(rank=rank, world_size=ranks).mine(rows) for rank in range(ranks)]
    assert [share.start for share in shares] == [0, *(share.stop for share in shares[:-1])]
    assert shares[-1].stop == rows
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_context_has_options_and_a_type_in_brackets_for_workloads_without_self_options() -> None:
    typed: Any = RankContext
    assert typed[int](options=3).options == 3
