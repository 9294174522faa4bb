"""Streams of events: all readers of a page share its computation, and a reader costs nothing while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message
from tests.waiting import HANG_S

from rolemesh_view import live
from rolemesh_view.live import Live, Parts


class Reader:
    """A browser with a stream. A `slow` one takes the first message, and then nothing until `go`."""

    def __init__(self, streams: Live, compute: Callable[[], Parts], *, slow: bool = False) -> None:
        self.got: list[bytes] = []
        self._slow, self.go, self.gone = slow, asyncio.Event(), asyncio.Event()
        self.task = asyncio.ensure_future(streams.send("page", compute, "", self._receive, self._send))

    async def _receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._slow and self.got:
            await self.go.wait()
        if message.get("body"):
            self.got.append(message["body"])


def test_thirty_readers_share_one_computation_and_a_slow_one_gets_only_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.01)
    computed: list[str] = []

    def compute() -> Parts:
        computed.append(shown[0])
        return Parts({"live": shown[0], "same": "x"})

    async def until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not true():
                await asyncio.sleep(0.005)

    async def check() -> None:
        streams = Live()
        readers = [Reader(streams, compute) for _ in range(29)]
        slow = Reader(streams, compute, slow=True)
        for text in ("one", "two\r\nlines", "three"):
            shown[0] = text
            await until(lambda: all(shown[0][:3].encode() in b"".join(reader.got[-2:]) for reader in readers))
        looks = len(computed)
        await until(lambda: len(computed) > looks + 20)
        assert {len(reader.got) for reader in readers} == {1 + 2 + 2}, "one look after another, and nothing is sent"
        assert b"data: two\ndata: lines\n" in readers[0].got[3]
        slow.go.set()
        await until(lambda: len(slow.got) == 4)
        assert [b"three" in each for each in slow.got] == [False, False, False, True]
        for reader in readers[1:]:
            reader.gone.set()
        await asyncio.wait_for(asyncio.gather(*(reader.task for reader in readers[1:])), HANG_S)
        streams.close()
        await asyncio.wait_for(asyncio.gather(slow.task, readers[0].task), HANG_S)
        looks = len(computed)
        await asyncio.sleep(0.05)
        assert len(computed) <= looks + 1, "without readers nobody looks"

    shown = ["one"]
    asyncio.run(check())
