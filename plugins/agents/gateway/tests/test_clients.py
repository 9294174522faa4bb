"""Jobs of real clients that keep less than they got, or leave: what is sampled is what is trained, and only once."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from urllib.parse import urlsplit

import anthropic
import openai
import pytest

from rolemesh_gateway import server

ASK = [{"role": "user", "content": "begin"}]
GO_ON = {"role": "user", "content": "go on"}
TEXT = "A turn of the model, which has some words in it. " * 20


class Client:
    """A real client, which is closed at the end."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.client.close()


class Chat(Client):
    """The client of OpenAI, with Chat Completions."""

    def __init__(self, door):
        self.client = openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0)

    async def turn(self, history):
        """Return the text of a turn."""
        answer = await self.client.chat.completions.create(model="m", messages=history)
        return answer.choices[0].message.content

    async def part(self, history):
        """Leave a stream in its middle, and return the text until then."""
        found = ""
        async with await self.client.chat.completions.create(model="m", messages=history, stream=True) as chunks:
            async for chunk in chunks:
                found += chunk.choices[0].delta.content or ""
                if len(found) >= 128:
                    break
        return found


class Messages(Client):
    """The client of Anthropic."""

    def __init__(self, door):
        self.client = anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0)

    async def turn(self, history):
        """Return the text of a turn."""
        answer = await self.client.messages.create(model="m", max_tokens=500, messages=history)
        return answer.content[0].text

    async def part(self, history):
        """Leave a stream in its middle, and return the text until then."""
        found = ""
        async with self.client.messages.stream(model="m", max_tokens=500, messages=history) as stream:
            async for text in stream.text_stream:
                found += text
                if len(found) >= 128:
                    break
        return found


@pytest.fixture(params=[Chat, Messages])
def client(request):
    """A class that wraps a real client."""
    return request.param


def said(text):
    return {"role": "assistant", "content": text}


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("kept", "samples"),
    [
        (lambda text: text, 1),
        (lambda text: f"\n {text} \n", 1),
        (lambda text: text[:50], 2),
        (lambda text: text.upper(), 2),
        (lambda text: "", 2),
    ],
    ids=["whole", "white space", "shortened", "changed", "emptied"],
)
def test_a_turn_that_a_client_keeps_otherwise_is_trained_as_it_was_sampled(gateway, says, client, kept, samples):
    async def main():
        async with gateway(lambda messages: says(TEXT)) as here, client(here.door) as mine:
            first = await mine.turn(ASK)
            await mine.turn([*ASK, said(kept(first) or "-"), GO_ON])
            assert len(here.talk.samples) == samples
            assert here.talk.samples[0][1] == said(TEXT)
            assert len(here.dialogue.breaks) == samples - 1

    asyncio.run(main())


def test_a_history_that_a_client_has_compacted_begins_a_sample_that_it_can_go_on_with(gateway, says, client):
    async def main():
        async with gateway(lambda messages: says(TEXT)) as here, client(here.door) as mine:
            history = list(ASK)
            for _ in range(3):
                history += [said(await mine.turn(history)), GO_ON]
            compacted = [{"role": "user", "content": f"Until now: {len(history)} messages. Go on."}]
            for _ in range(2):
                compacted += [said(await mine.turn(compacted)), GO_ON]
            assert [len(each) for each in here.talk.samples] == [6, 4]
            assert not here.dialogue.breaks, "a short context is a new subject, and no changed one"

    asyncio.run(main())


def test_a_client_that_keeps_a_part_of_a_stream_begins_a_sample_and_the_whole_turn_is_trained(
    gateway, says, client, monkeypatch
):
    monkeypatch.setattr(server, "LAST_S", 5.0)

    async def main():
        async with gateway(lambda messages: says(TEXT)) as here, client(here.door) as mine:
            part = await mine.part(ASK)
            await until(lambda: here.door.desk._lost)
            assert TEXT.startswith(part)
            assert len(part) < len(TEXT)
            await mine.turn([*ASK, said(part), GO_ON])
            assert here.talk.samples[0] == [*ASK, said(TEXT)]
            assert here.dialogue.breaks == ["message 1 has changed"]

    asyncio.run(main())


@pytest.mark.parametrize("again", [True, False], ids=["asks again", "asks something else"])
def test_a_client_that_leaves_after_50_ms_gets_its_turn_or_another_one(gateway, says, client, again):
    async def main():
        async with gateway(lambda messages: says(TEXT)) as here, client(here.door) as mine:
            here.talk.hang = asyncio.Event()
            mine.client = mine.client.with_options(timeout=0.05)
            with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
                await mine.turn(ASK)
            await until(lambda: here.door.desk._timer is not None)
            if again:
                here.talk.hang.set()
            here.talk.hang = None  # the turn that was left waits for its cancellation, and later ones wait for nothing
            mine.client = mine.client.with_options(timeout=10)
            assert await mine.turn(ASK if again else [{"role": "user", "content": "else"}]) == TEXT
            assert (here.door.desk.repeated, len(here.talk.params)) == (int(again), 1)
            assert [len(each) for each in here.talk.samples] == ([2] if again else [1, 2])

    asyncio.run(main())


@pytest.mark.parametrize("text", [" ", "\n\n\t", ""])
def test_a_turn_of_white_space_goes_on_in_its_sample(gateway, says, client, text):
    async def main():
        async with gateway(lambda messages: says(text)) as here, client(here.door) as mine:
            assert await mine.turn(ASK) == text
            await mine.turn([*ASK, said(text), GO_ON])
            assert here.talk.samples == [[*ASK, said(text), GO_ON, said(text)]]

    asyncio.run(main())


KEYS = [
    ("chat/completions", {"messages": [{**ASK[0], "prefix": True}]}, "messages[].prefix"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "weight": 2}]}]},
        "messages[].content[].weight",
    ),
    ("responses", {"input": [{**ASK[0], "phase": "x"}]}, "input[].phase"),
    (
        "responses",
        {"input": "a", "tools": [{"type": "function", "name": "a", "defer_loading": True}]},
        "tools[].defer_loading",
    ),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "citations": {"enabled": True}}]}]},
        "messages[].content[].citations",
    ),
    (
        "messages",
        {"messages": ASK, "tools": [{"name": "a", "input_schema": {}, "input_examples": [{}]}]},
        "tools[].input_examples",
    ),
]


async def posted(door, path, body, **headers):
    """Post `body` as it is; return status, ignored parameters, and the JSON value of the answer."""
    address = urlsplit(door.url)
    told = {"Host": "x", "Authorization": f"Bearer {door.key}", "Connection": "close", "Content-Length": len(body)}
    lines = [f"{name}: {value}" for name, value in {**told, **headers}.items()]
    head = "\r\n".join([f"POST {address.path}/v1/{path} HTTP/1.1", *lines, "", ""]).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(head + body)
    top, _, data = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    found = dict(line.lower().split(": ", 1) for line in top.decode().splitlines()[1:])
    return int(top.split()[1]), found.get("x-rolemesh-ignored", ""), json.loads(data)


@pytest.mark.parametrize(("path", "told", "name"), KEYS, ids=[each[2] for each in KEYS])
def test_a_key_that_the_gateway_does_not_read_is_noted_wherever_it_is(gateway, says, path, told, name):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            body = json.dumps({"model": "m", "max_tokens": 5, **told}).encode()
            status, ignored, _ = await posted(here.door, path, body)
            assert (status, name in ignored.split(", ")) == (200, True)

    asyncio.run(main())


BODY = json.dumps({"model": "m", "messages": ASK, "max_tokens": 5}).encode()


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
@pytest.mark.parametrize(
    ("encoding", "body", "status", "reason"),
    [
        ("gzip", gzip.compress(BODY), 200, ""),
        ("gzip", BODY, 400, "the body is not encoded as its head says"),
        ("deflate", os.urandom(200), 400, "the body is not encoded as its head says"),
        ("rot13", BODY, 415, "Content-Encoding: 'rot13' is not known; send the body as it is, or with gzip"),
    ],
)
def test_a_body_that_is_not_encoded_as_it_says_is_refused_in_the_form_of_the_api(
    gateway, says, caplog, path, encoding, body, status, reason
):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            found, _, answer = await posted(here.door, path, body, **{"Content-Encoding": encoding})
            assert found == status
            if reason:
                assert reason in answer["error"]["message"]
                assert answer["error"]["type"] == "invalid_request_error"

    asyncio.run(main())
    assert not [each for each in caplog.records if each.name.startswith("rolemesh_gateway") and each.exc_info]


def test_a_limit_of_tokens_is_refused_by_the_name_that_the_client_gave_it(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, Chat(here.door) as mine:
            with pytest.raises(openai.BadRequestError) as caught:
                await mine.client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=0)
            assert caught.value.param == "max_completion_tokens"

    asyncio.run(main())
