"""The gateway with many open conversations and a model that answers at once: turns a second, and memory of each."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from benchmarks.report import Report, ratios
from benchmarks.running import BenchmarkError
from rolemesh import RankContext
from rolemesh_agents import Message, Start, Task, Tool, Turn
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.conversations.tokens import ParsedTurn
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.server import Door, Server

TEXT = "A turn of the model, which has some words in it. " * 4


def measure(quick: bool) -> Report:
    """At least a quarter of the turns of an HTTP server that does nothing; at most 64 KB without the tokens."""
    report = Report("gateway", "Open conversations whose clients ask for one turn after another", quick)
    rounds, several, turns = (1, 50, 4) if quick else (3, 1000, 10)
    ours: list[float] = []
    bare: list[float] = []
    memory: list[float] = []
    for _ in range(rounds):
        took, grown = asyncio.run(_measured(_gateway, several, turns))
        ours.append(several * turns / took)
        memory.append(grown / several / 1000)
        took, _ = asyncio.run(_measured(_nothing, several, turns))
        bare.append(several * turns / took)
    report.row("the gateway", "turns/s", ours)
    report.row("aiohttp, a constant answer", "turns/s", bare)
    report.claim("the gateway / aiohttp with a constant answer", ratios(ours, bare), at_least=0.25)
    # Later rounds find the memory of the first one.
    report.claim("memory of an open conversation", memory[:1], at_most=64, unit="KB")
    for sampled in (35, 100):
        told = [sys.executable, "-m", "benchmarks.gateway", "tokens", str(several), str(sampled)]
        tokens, size = subprocess.run(told, check=True, capture_output=True, text=True).stdout.split()
        report.row(f"an open conversation of 20 turns with its {tokens} tokens", "KB", [float(size)])
    report.settings = {"open conversations": several, "turns of each": turns}
    return report


class Ready:
    """A conversation whose model answers at once."""

    number = seed = 0
    start = Start([{"role": "user", "content": "begin"}])

    async def sample(self, params: Mapping[str, Any] = {}) -> Turn:
        """Answer."""
        return Turn(TEXT, (), (), range(50), "stop", 100)

    def append(self, messages: Sequence[Message]) -> None:
        """Forget the messages."""

    def begin(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, name: str = "") -> int:
        """Begin no sample: the clients send the environment's messages."""
        raise BenchmarkError("a request did not continue its conversation")


class Bytes:
    """A chat template whose tokens are the bytes of the texts."""

    stop_token_ids = (0,)

    def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the tokens before the first turn."""
        return [*"".join(f"<{each['role']}>{each['content']}" for each in messages).encode(), *b"<assistant>"]

    def increment(self, turn: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the tokens between a turn and the next one."""
        return self.opening(messages, tools)

    def parse(self, turn: Sequence[int], tools: Sequence[Tool]) -> ParsedTurn:
        """Return the text of a turn."""
        return ParsedTurn(bytes(turn).decode(), [], [])

    def message(self, turn: ParsedTurn) -> Message:
        """Return a turn as a message."""
        return {"role": "assistant", "content": turn.content}


def _talk(sampled: int) -> Talk:
    """A real conversation with `sampled` tokens in each turn of its model, which answers at once."""

    async def sample(prompt: Any, params: Any) -> SampledTurn:
        ids = np.frombuffer(TEXT.encode()[:sampled], np.uint8).astype(np.int32)
        return SampledTurn(ids, np.full(sampled, -0.5, np.float32), np.full(sampled, 3, np.int64), "stop")

    episode = RemoteEpisode(RankContext(), "environment", Task(0, None), 0)
    limits = ConversationLimits(turns=1000, tokens=1_000_000)
    return Talk(0, 0, Ready.start, episode, Bytes(), sample, limits, {"temperature": 1.0})


async def _with_tokens(several: int, sampled: int) -> str:
    """Number of tokens of each conversation after 20 turns, and KB by which this process has grown for each."""
    talks = [_talk(sampled) for _ in range(several)]
    _, grown = await _measured(functools.partial(_gateway, talks=talks), several, 19)
    return f"{len(talks[0].transcripts[0])} {grown / several / 1000:.1f}"


@asynccontextmanager
async def _gateway(several: int, talks: Sequence[Any] | None = None) -> Any:
    server = Server("policy", 8.0, 16)
    await server.start()
    before = resident()
    doors: list[Door] = []
    tasks = []
    for talk in talks or [Ready() for _ in range(several)]:
        door = server.open(talk.start)
        doors.append(door)
        tasks.append(asyncio.ensure_future(Dialogue(talk, door.desk, (), False).run(lambda: None)))
    yield [(door.url, door.key) for door in doors], before
    for task in tasks:
        task.cancel()
    await server.stop()


@asynccontextmanager
async def _nothing(several: int) -> Any:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": TEXT}}]})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield [(f"{url}/{number}", "key") for number in range(several)], resident()
    await runner.cleanup()


async def _measured(served: Callable[[int], Any], several: int, turns: int) -> tuple[float, float]:
    """Seconds of all turns, and bytes by which this process has grown while all conversations were open."""
    async with served(several) as (doors, before):
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gateway", str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(doors) + "\n")
        process.stdin.flush()
        loop = asyncio.get_running_loop()
        took = await loop.run_in_executor(None, process.stdout.readline)
        gc.collect()
        grown = resident() - before
        process.stdin.close()
        if await loop.run_in_executor(None, process.wait):
            raise BenchmarkError("the clients of the gateway failed")
        return float(took), grown


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _clients(doors: Sequence[tuple[str, str]], turns: int) -> float:
    """Open a connection for each conversation, take a turn with each, and then measure `turns` of all."""
    talks = [await _connected(url, key) for url, key in doors]
    await asyncio.gather(*(talk(1) for talk in talks))
    began = time.perf_counter()
    await asyncio.gather(*(talk(turns) for talk in talks))
    return time.perf_counter() - began


async def _connected(url: str, key: str) -> Callable[[int], Awaitable[None]]:
    _, _, host, number = url.split("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    history: list[Message] = [{"role": "user", "content": "begin"}]

    async def talk(turns: int) -> None:
        for _ in range(turns):
            body = json.dumps({"model": "policy", "messages": history}).encode()
            head = f"POST /{number}/v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(told.partition("content-length:")[2].split()[0])
            answer = json.loads(await reader.readexactly(size))
            history.append(answer["choices"][0]["message"])
            history.append({"role": "user", "content": "Please go on."})

    return talk


if __name__ == "__main__" and sys.argv[1] == "tokens":
    print(asyncio.run(_with_tokens(int(sys.argv[2]), int(sys.argv[3]))))
elif __name__ == "__main__":
    print(asyncio.run(_clients(json.loads(sys.stdin.readline()), int(sys.argv[1]))), flush=True)
    sys.stdin.read()
