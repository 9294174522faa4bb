"""A gateway that always has a thousand open conversations: ``python -m tests.soak.talking --minutes 60``.

The model answers at once, so the gateway does all the work. A client in another process takes one turn after another in
each conversation. A conversation that ends makes room for a new one. The run samples the memory of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import linear_regression
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil

from rolemesh_agents import Message, Start, Tool
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.server import Server

__all__ = ["Level", "main", "slope", "talked"]

MOST_TURNS = 40
"""Turns of the longest conversation; the shortest has one."""
WORDS = np.frombuffer(b"A turn of the model, which has some words in it. " * 2, np.uint8).astype(np.int32)
ASKED = "Please go on with the next part."


class Level(NamedTuple):
    """A moment: seconds since the start, turns, seconds of CPU time, bytes of memory, descriptors, and objects."""

    at: float
    turns: int
    cpu: float
    resident: int
    descriptors: int
    objects: int


class _Bytes:
    """A `TokenTemplate`: a token is a byte, and each message is a line."""

    stop_token_ids = (256,)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return [*self._lines(messages)]

    def increment(self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return [256, *self._lines(messages)]

    def parse(self, turn: Sequence[int], tools: Sequence[Tool]) -> ParsedTurn:
        return ParsedTurn(bytes(turn).decode(), [], [])

    def message(self, turn: ParsedTurn) -> Message:
        return {"role": "assistant", "content": turn.content}

    def _lines(self, messages: Sequence[Message]) -> bytes:
        return "".join(f"{each['role']}: {each['content']}\n" for each in messages).encode()


class _Gateway:
    """The open conversations of a server, and the process with their clients."""

    def __init__(self, several: int) -> None:
        self._several = several
        self._rng = random.Random(0)
        self._server = Server("policy", 8.0, 16)
        self._open: dict[int, tuple[Any, asyncio.Task[Any]]] = {}
        self._begun = self._turns = 0
        self._looked = 0.0
        """Seconds of CPU time of the levels themselves."""

    async def run(self, seconds: float, every_s: float) -> list[Level]:
        """Talk for `seconds`, and return a level every `every_s`."""
        await self._server.start()
        command = [sys.executable, "-m", "tests.soak.talking", "--client"]
        pipe = asyncio.subprocess.PIPE
        client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 20)
        assert client.stdin is not None
        began = time.monotonic()
        levels: list[Level] = []
        for _ in range(self._several):
            client.stdin.write(self._begin())
        replacing = asyncio.ensure_future(self._replace(client))
        while (now := time.monotonic()) < began + seconds:
            await asyncio.wait([replacing], timeout=max(0.0, min(began + len(levels) * every_s, began + seconds) - now))
            if replacing.done():
                replacing.result()
                for _, task in self._open.values():
                    if task.done():
                        task.result()
                raise RuntimeError("the clients of the gateway have failed")
            levels.append(self._level(time.monotonic() - began))
        replacing.cancel()
        client.kill()
        await client.wait()
        await self._server.stop()
        return levels

    async def _replace(self, client: asyncio.subprocess.Process) -> None:
        """Open a conversation for each that ends. Return when the client has ended."""
        assert client.stdin is not None
        assert client.stdout is not None
        async for line in client.stdout:
            self._end(int(line))
            client.stdin.write(self._begin())

    def _begin(self) -> bytes:
        """Open a conversation; return the line that tells the client."""
        number, self._begun = self._begun, self._begun + 1
        start = Start([{"role": "user", "content": f"Conversation {number} begins."}])
        limits = ConversationLimits(turns=MOST_TURNS, tokens=1 << 20)
        episode: Any = SimpleNamespace(hears=False)  # no client of this test calls a tool
        talk = Talk(number, number, start, episode, _Bytes(), self._sample, limits, {})
        door = self._server.open(start)
        task = asyncio.ensure_future(Dialogue(talk, door.desk, (), False).run(lambda: None))
        self._open[number] = door, task
        turns = self._rng.randint(1, MOST_TURNS)
        told = {"number": number, "url": door.url, "key": door.key, "turns": turns, "begin": start.messages}
        return json.dumps(told).encode() + b"\n"

    async def _sample(self, prompt: Any, params: Mapping[str, Any]) -> SampledTurn:
        """Answer at once, as a model of no size would."""
        self._turns += 1
        count = len(WORDS)
        return SampledTurn(WORDS, np.zeros(count, np.float32), np.zeros(count, np.int64), "stop")

    def _end(self, number: int) -> None:
        door, task = self._open.pop(number)
        task.cancel()
        self._server.close(door)

    def _level(self, at: float) -> Level:
        cpu = time.process_time()
        gc.collect()
        process = psutil.Process()
        objects = len(gc.get_objects())
        level = Level(at, self._turns, cpu - self._looked, process.memory_info().rss, process.num_fds(), objects)
        self._looked += time.process_time() - cpu
        return level


async def _client() -> None:
    """Take the turns of all conversations that standard input names, and print the number of each that has ended."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if (error := task.exception()) is not None:
            failed.append(error)
            lines.feed_eof()

    while (line := await lines.readline()) and not failed:
        task = asyncio.ensure_future(_conversation(**json.loads(line)))
        running.add(task)
        task.add_done_callback(ended)
    if failed:
        raise failed[0]


async def _conversation(number: int, url: str, key: str, turns: int, begin: list[Message]) -> None:
    _, _, host, path = url.split("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    history = list(begin)
    for _ in range(turns):
        body = json.dumps({"model": "policy", "messages": history}).encode()
        head = f"POST /{path}/v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        told = (await reader.readuntil(b"\r\n\r\n")).decode()
        answer = await reader.readexactly(int(told.lower().partition("content-length:")[2].split()[0]))
        if not told.startswith("HTTP/1.1 200"):
            raise RuntimeError(f"{told}{answer!r}")
        history += [json.loads(answer)["choices"][0]["message"], {"role": "user", "content": ASKED}]
    writer.close()
    os.write(1, f"{number}\n".encode())


def talked(seconds: float, several: int, every_s: float) -> list[Level]:
    """Hold `several` conversations at once for `seconds`, and return the levels of the gateway's process."""
    return asyncio.run(_Gateway(several).run(seconds, every_s))


def slope(levels: Sequence[Level], what: str = "resident") -> float:
    """Return the growth of a quantity per hour, by least squares."""
    return 3600 * linear_regression([each.at for each in levels], [getattr(each, what) for each in levels]).slope


def main(arguments: list[str] | None = None) -> int:
    """Print the levels and their slopes after the first fifth of the time."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.talking", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--conversations", type=int, default=1000, help="how many are open at once (default: 1000)")
    parser.add_argument("--client", action="store_true", help="be the process of the clients")
    given = parser.parse_args(arguments)
    if given.client:
        asyncio.run(_client())
        return 0
    levels = talked(60 * given.minutes, given.conversations, max(1.0, given.minutes))
    for each in levels:
        took = f"{each.at:6.0f} s  {each.turns:9,} turns  {each.cpu:6.0f} s of CPU"
        print(f"{took}  {each.resident / 1e6:8.2f} MB  {each.descriptors} descriptors")
    warm = [each for each in levels if each.at >= 12 * given.minutes]
    pace = (warm[-1].turns - warm[0].turns) / (warm[-1].at - warm[0].at)
    used = 1000 * (warm[-1].cpu - warm[0].cpu) / max(1, warm[-1].turns - warm[0].turns)
    grown = f"memory {slope(warm) / 1e6:+.2f} MB an hour, {slope(warm, 'objects'):+,.0f} objects"
    print(f"{pace:.0f} turns/s; {used:.2f} ms of CPU a turn; {grown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
