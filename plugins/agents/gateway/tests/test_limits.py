"""The gateway before odd and hostile clients: long bodies, wrong keys, disconnects, and parallel requests."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from tests.waiting import HANG_S

from rolemesh_agents import Reward
from rolemesh_gateway import server

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "begin"}]}


def session(door) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {door.key}"})


async def until(condition) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the most bytes that this process has held since, of what it holds in addition."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_body_of_100_mb_is_refused_before_it_is_in_memory(gateway, says):
    async def body():
        for _ in range(100):
            yield b"x" * 1_000_000

    async def main():
        async with gateway(lambda messages: says("no")) as here, session(here.door) as client:
            with traced() as most:
                try:
                    async with client.post(f"{here.door.url}/v1/messages", data=body()) as answer:
                        assert answer.status == 413
                        assert (await answer.json())["error"]["type"] == "request_too_large"
                except aiohttp.ClientConnectionError:
                    pass  # the gateway closed the connection before the client had sent everything
                assert most() < 30_000_000
            async with client.post(f"{here.door.url}/v1/chat/completions", json=QUESTION) as answer:
                assert answer.status == 200

    asyncio.run(main())


def test_an_open_connection_holds_nothing_of_its_last_request(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            _, _, host, number = here.door.url.split("/")
            reader, writer = await asyncio.open_connection(*host.split(":"))

            async def asked(length):
                body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "y" * length}]}).encode()
                head = f"POST /{number}/v1/messages/count_tokens HTTP/1.1\r\nHost: x\r\nx-api-key: {here.door.key}\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                told = await reader.readuntil(b"\r\n\r\n")
                assert told.startswith(b"HTTP/1.1 200")
                await reader.readexactly(int(told.lower().partition(b"content-length:")[2].split()[0]))

            await asked(10)
            tracemalloc.start()
            try:
                await asked(500_000)
                await asyncio.sleep(0.1)
                gc.collect()
                assert tracemalloc.get_traced_memory()[0] < 100_000
            finally:
                tracemalloc.stop()
            writer.close()

    asyncio.run(main())


def test_answers_that_may_be_continued_hold_the_history_once(gateway, says):
    """A client that sends its whole history with each request may still name any of the last answers."""
    long = "words and more words " * 100
    tools = [{"type": "function", "name": "add", "description": long, "parameters": {"type": "object"}}]

    async def main():
        async with gateway(lambda messages: says(long)) as here, session(here.door) as client:
            history = [{"role": "user", "content": long}]
            for _ in range(30):
                told = {"model": "m", "input": history, "tools": tools, "instructions": long}
                async with client.post(f"{here.door.url}/v1/responses", json=told) as answer:
                    history += [*(await answer.json())["output"], {"role": "user", "content": long}]
            gc.collect()
            found = here.dialogue._kept
            seen = {id(each["content"]) for kept in found.values() for each in kept.messages}
            seen |= {id(kept.ask.echo["instructions"]) for kept in found.values()}
            seen |= {id(tool) for kept in found.values() for tool in (*kept.tools, *kept.ask.tools)}
            assert (len(found), [len(kept.messages) for kept in found.values()]) == (30, list(range(2, 62, 2)))
            assert len(seen) <= 2 * 60 + 2, (
                "texts are held a second time at most: by the model's turn, and by the request"
            )
            assert not any(kept.ask.messages for kept in found.values())

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff\xfe", b"[" * 5000])
def test_a_body_that_is_no_json_object_is_refused(gateway, says, data):
    async def main():
        async with gateway(lambda messages: says("no")) as here, session(here.door) as client:
            answer = await client.post(f"{here.door.url}/v1/responses", data=data)
            assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")

    asyncio.run(main())


def test_a_body_of_many_small_objects_is_refused_before_it_is_read_and_a_long_text_with_braces_is_not(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            for content, status in (([{"a": []}] * 60_000, 413), ('{["x": \\"' * 60_000, 200)):
                question = {"model": "m", "messages": [{"role": "user", "content": content}]}
                async with client.post(f"{here.door.url}/v1/chat/completions", json=question) as answer:
                    assert answer.status == status

    asyncio.run(main())


def test_long_bodies_that_do_not_end_take_a_limited_memory_and_the_next_one_is_refused_at_once(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            host, port = here.door.url.split("/")[2].split(":")
            head = f"POST /{here.door.number}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {here.door.key}\r\n"
            with traced() as most:
                opened = []
                for _ in range(60):
                    opened.append(await asyncio.open_connection(host, int(port)))
                    opened[-1][1].write(head.encode() + b"Content-Length: 999999\r\n\r\n" + b" " * 990_000)
                    await opened[-1][1].drain()
                async with asyncio.timeout(HANG_S):
                    refused = await opened[-1][0].readuntil(b"\r\n\r\n")
                assert refused.startswith(b"HTTP/1.1 429 ")
                assert b"x-should-retry: true" in refused
                assert sum(here.door.held.values()) <= 8_000_000
                async with client.post(f"{here.door.url}/v1/chat/completions", json=QUESTION) as answer:
                    assert answer.status == 200
                for _, writer in opened:
                    writer.transport.abort()
                await until(lambda: not here.door.held)
                long = {"model": "m", "messages": [{"role": "user", "content": "x" * 100_000}]}
                async with client.post(f"{here.door.url}/v1/chat/completions", json=long) as answer:
                    assert answer.status == 200
                # Without the limit there would be 60 MB.
                assert most() < 40_000_000

    asyncio.run(main())


def test_long_requests_that_together_have_room_are_answered_and_give_it_back(gateway, says, monkeypatch):
    monkeypatch.setattr(server, "LARGE", 1)

    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            long = {"model": "m", "messages": [{"role": "user", "content": "x" * 230_000}]}
            url = f"{here.door.url}/v1/chat/completions"
            for _ in range(3):
                answers = await asyncio.gather(*(client.post(url, json=long) for _ in range(4)))
                assert [answer.status for answer in answers] == [200] * 4
            assert not here.door.held

    asyncio.run(main())


def test_a_connection_that_brings_no_right_key_is_closed_and_one_with_a_key_stays(gateway, says, monkeypatch):
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    monkeypatch.setattr(server, "STRANGERS", 20)

    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            async with client.get(f"{here.door.url}/v1/models") as answer:
                assert answer.status == 200
            host, port = here.door.url.split("/")[2].split(":")
            opened = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
            for data, (reader, writer) in zip(
                [b"", b"GET /1/v1/models HTTP/1.1\r\nHost: x\r\n\r\n"] * 20, opened, strict=True
            ):
                writer.write(data)
                async with asyncio.timeout(HANG_S):
                    with suppress(ConnectionResetError):
                        await reader.read()
                writer.close()
            assert [each for each in here.door.connections if not each.is_closing()]

    asyncio.run(main())


def test_the_oldest_of_many_connections_that_begin_at_once_without_a_key_are_closed(gateway, says, monkeypatch):
    monkeypatch.setattr(server, "STRANGERS", 20)

    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            port = urlsplit(here.door.url).port
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]  # the gateway sees all at once
            async with asyncio.timeout(server.HEAD_S / 2):
                for each in opened[:40]:
                    each.setblocking(False)
                    with suppress(ConnectionResetError):
                        assert await asyncio.get_running_loop().sock_recv(each, 1) == b""
            for each in opened[40:]:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)
            for each in opened:
                each.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_a_request_that_is_no_http_gets_one_line_in_the_log_or_none(gateway, says, data, caplog):
    async def main():
        async with gateway(lambda messages: says("no")) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(here.door.url).port)
            writer.write(data)
            assert b" 400 " in await reader.readline()
            writer.close()

    asyncio.run(main())
    lines = caplog.text.splitlines()
    assert all("refused a request that is no HTTP" in line for line in lines)
    assert len(lines) <= 1


async def left(here, client, **told):
    """Ask for a turn, and go away while it is sampled."""
    here.talk.hang = asyncio.Event()
    before, cancelled = here.talk.asked, here.dialogue.counts.cancelled
    asked = asyncio.ensure_future(client.post(f"{here.door.url}/v1/chat/completions", json={**QUESTION, **told}))
    await until(lambda: here.talk.asked > before)
    asked.cancel()
    await until(lambda: here.door.desk._timer is not None or here.dialogue.counts.cancelled > cancelled)


async def text(client, here, **told):
    async with client.post(f"{here.door.url}/v1/chat/completions", json={**QUESTION, **told}) as answer:
        return (await answer.json())["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_disconnects_and_asks_again_gets_the_one_turn_that_was_sampled(gateway, says, stream, late):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            await left(here, client, stream=stream)
            if late:
                here.talk.hang.set()
                await until(lambda: here.talk.params)
                found = await text(client, here)
            else:
                again = asyncio.ensure_future(text(client, here))
                await until(lambda: here.door.desk.repeated)
                here.talk.hang.set()
                found = await again
            assert (found, here.talk.asked, here.door.desk.repeated) == ("yes", 1, 1)
            assert here.talk.samples == [[QUESTION["messages"][0], {"role": "assistant", "content": "yes"}]]

    asyncio.run(main())


@pytest.mark.parametrize("retry_s", [0, 0.05])
def test_a_client_that_does_not_come_back_cancels_the_sampling_and_may_ask_later(gateway, says, retry_s):
    async def main():
        async with gateway(lambda messages: says("yes"), retry_s=retry_s) as here, session(here.door) as client:
            await left(here, client)
            await until(lambda: here.dialogue.counts.cancelled)
            here.talk.hang.set()
            assert await text(client, here) == "yes"
            assert here.talk.samples == [[QUESTION["messages"][0], {"role": "assistant", "content": "yes"}]]

    asyncio.run(main())


def test_another_request_after_a_disconnect_cancels_the_sampling_at_once(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            await left(here, client)
            assert here.door.missed == "the program left before it"
            hang, here.talk.hang = here.talk.hang, None
            assert await text(client, here, messages=[{"role": "user", "content": "something else"}]) == "yes"
            assert here.door.missed == ""
            assert (here.dialogue.counts.cancelled, here.dialogue.counts.turns, hang.is_set()) == (1, 1, False)
            # The model has not seen the cancelled message, so another one continues the same sample.
            sample = here.talk.samples[-1]
            told = [*sample, {"role": "user", "content": "go on"}]
            await left(here, client, messages=told)
            here.talk.hang = None
            told[-1] = {"role": "user", "content": "no, stop"}
            assert await text(client, here, messages=told) == "yes"
            assert here.talk.samples[-1] is sample
            assert [each["content"] for each in sample] == ["something else", "yes", "no, stop", "yes"]
            assert (here.dialogue.counts.cancelled, here.dialogue.counts.begun, here.dialogue.breaks) == (2, 1, [])

    asyncio.run(main())


def test_a_client_whose_answer_is_late_takes_the_turn_of_a_request_that_is_the_same_and_waits(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            here.talk.hang = asyncio.Event()
            url = f"{here.door.url}/v1/chat/completions"
            first = asyncio.ensure_future(client.post(url, json=QUESTION))
            await until(lambda: here.talk.asked)
            second = asyncio.ensure_future(client.post(url, json=QUESTION))
            await until(lambda: here.door.desk.waits)
            first.cancel()
            await until(lambda: here.door.desk.repeated)
            here.talk.hang.set()
            assert ((await second).status, here.talk.asked) == (200, 1)

    asyncio.run(main())


def test_a_client_with_a_timeout_shorter_than_the_sampling_gets_the_turn_by_its_retries(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            here.talk.hang = asyncio.Event()
            client = openai.AsyncOpenAI(
                base_url=f"{here.door.url}/v1", api_key=here.door.key, timeout=1.0, max_retries=20
            )
            async with client:
                asked = asyncio.ensure_future(client.chat.completions.create(**QUESTION))
                await until(lambda: here.door.desk.repeated)
                here.talk.hang.set()
                answer = await asked
            assert (answer.choices[0].message.content, here.talk.asked) == ("yes", 1)

    asyncio.run(main())


def test_a_call_whose_client_disconnects_runs_once_if_it_has_an_id(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            url, told = f"{here.door.url}/call", {"name": "add", "arguments": {"a": 1}, "id": "c1"}
            here.talk.hang = asyncio.Event()
            asked = asyncio.ensure_future(client.post(url, json=told))
            await until(lambda: here.talk.calls)
            asked.cancel()
            await until(lambda: here.door.desk._timer is not None)
            here.talk.hang.set()
            async with client.post(url, json=told) as answer:
                assert await answer.json() == {"content": "add done", "done": False}
            assert len(here.talk.calls) == 1

    asyncio.run(main())


@pytest.mark.parametrize("words", [3, 300_000])
def test_a_stream_that_a_client_leaves_in_its_middle_is_sent_again_from_its_beginning(
    gateway, says, words, monkeypatch
):
    monkeypatch.setattr(server, "LAST_S", 5.0)
    long = "words and more words " * words

    async def main():
        async with gateway(lambda messages: says(long)) as here:
            client = openai.AsyncOpenAI(base_url=f"{here.door.url}/v1", api_key=here.door.key, max_retries=0)
            async with client:
                async with await client.chat.completions.create(**QUESTION, stream=True) as chunks:
                    await anext(chunks)
                await until(lambda: here.door.desk._lost)
                answer = await client.chat.completions.create(**QUESTION)
            assert (answer.choices[0].message.content, here.talk.asked) == (long, 1)

    asyncio.run(main())


def test_parallel_requests_are_answered_one_after_the_other_and_too_many_are_refused(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            here.talk.hang = asyncio.Event()
            url = f"{here.door.url}/v1/chat/completions"
            asked = [asyncio.ensure_future(client.post(url, json=QUESTION))]
            await until(lambda: here.talk.asked)
            asked += [asyncio.ensure_future(client.post(url, json=QUESTION)) for _ in range(7)]
            await until(lambda: sum(each.done() for each in asked) == 3)
            refused = [(await each).status for each in asked if each.done()]
            here.talk.hang.set()
            statuses = sorted([(await each).status for each in asked])
            assert (refused, statuses) == ([429] * 3, [200] * 5 + [429] * 3)
            assert len(here.talk.params) == 5

    asyncio.run(main())


def test_a_repeated_request_of_a_client_gets_the_same_answer(gateway, says):
    answers = iter(["one", "two"])

    async def main():
        async with gateway(lambda messages: says(next(answers))) as here, session(here.door) as client:
            found = []
            for retry in ("0", "1", "0"):
                headers = {"x-stainless-retry-count": retry}
                async with client.post(
                    f"{here.door.url}/v1/chat/completions", json=QUESTION, headers=headers
                ) as answer:
                    found.append((await answer.json())["choices"][0]["message"]["content"])
            assert found == ["one", "one", "two"]
            assert here.dialogue.counts.repeated == 1

    asyncio.run(main())


def test_requests_after_the_end_of_a_conversation_say_so_but_the_reward_counts(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes"), turns=1) as here, session(here.door) as client:
            url = f"{here.door.url}/v1/chat/completions"
            for status in (200, 400, 400):
                async with client.post(url, json=QUESTION) as answer:
                    assert answer.status == status
                    assert answer.headers.get("x-should-retry", "false") == "false"
                    told = await answer.json()
            assert told["error"]["code"] == "conversation_over"
            async with client.post(f"{here.door.url}/reward", json={"reward": 0.5}) as answer:
                assert answer.status == 200
            assert here.dialogue.reward == Reward(0.5)

    asyncio.run(main())


@pytest.mark.parametrize("body", [{"reward": "1"}, {"reward": True}, {}, {"reward": 1, "success": 1}])
def test_a_reward_must_be_a_number(gateway, says, body):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            answer = await client.post(f"{here.door.url}/reward", json=body)
            assert answer.status == 400

    asyncio.run(main())


def test_a_program_calls_the_tools_of_the_environment_and_may_not_judge_itself(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes"), may_judge=False) as here, session(here.door) as client:
            async with client.post(f"{here.door.url}/call", json={"name": "add", "arguments": {"a": 1}}) as answer:
                assert await answer.json() == {"content": "add done", "done": False}
            async with client.get(f"{here.door.url}/start") as answer:
                assert await answer.json() == {"messages": QUESTION["messages"], "tools": []}
            async with client.post(f"{here.door.url}/reward", json={"reward": 1e9}) as answer:
                assert answer.status == 409

    asyncio.run(main())


def test_the_key_of_one_conversation_opens_no_other_one(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:
            other = here.server.open(here.talk.start)
            async with client.get(f"{other.url}/v1/models") as answer:
                mine = await answer.json()
            async with client.get(f"{here.door.url}999/v1/models") as answer:
                assert (answer.status, await answer.json()) == (401, mine)

    asyncio.run(main())


def test_the_end_of_a_conversation_closes_its_connections(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            host, port = here.door.url.split("/")[2].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps(QUESTION).encode()
            head = f"POST /{here.door.number}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {here.door.key}\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readuntil(b"\r\n\r\n")
            here.server.close(here.door)
            async with asyncio.timeout(HANG_S):
                await reader.read()
            writer.close()

    asyncio.run(main())
