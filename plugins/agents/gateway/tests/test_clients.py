"""Jobs of real clients that keep less than they got, or leave: what is sampled is what is trained, and only once."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from urllib.parse import urlsplit

import aiohttp
import anthropic
import openai
import pytest
from tests.waiting import HANG_S

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
    async with asyncio.timeout(HANG_S):
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
def test_a_client_that_leaves_in_the_middle_of_a_turn_gets_it_or_another_one(gateway, says, client, again):
    async def main():
        async with gateway(lambda messages: says(TEXT)) as here, client(here.door) as mine:
            here.talk.hang = asyncio.Event()
            asked = asyncio.ensure_future(mine.turn(ASK))
            await until(lambda: here.talk.asked)
            asked.cancel()
            await until(lambda: here.door.desk._timer is not None)
            if again:
                here.talk.hang.set()
            here.talk.hang = None  # the turn that was left waits for its cancellation, and later ones wait for nothing
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
    (
        "chat/completions",
        {"messages": ASK, "stream_options": {"include_usage": False, "include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    (
        "responses",
        {"input": "x", "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
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
        ("gzip", gzip.compress(BODY, mtime=0), 200, ""),
        ("gzip", BODY, 400, "the body is not encoded as its head says"),
        ("deflate", bytes(range(200)), 400, "the body is not encoded as its head says"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-9], 400, "it ends too early"),
        ("gzip", gzip.compress(BODY, mtime=0) + BODY, 400, "more follows its end"),
        ("gzip", gzip.compress(BODY + b" " * 2_000_000, mtime=0), 413, "the body is longer than 1 MB"),
        ("deflate", zlib.compress(BODY), 200, ""),
        ("deflate", zlib.compress(BODY)[2:-4], 200, ""),
        ("rot13", BODY, 415, "Content-Encoding: 'rot13' is not known; send the body as it is, or with gzip"),
        ("zstd", BODY, 415, "Content-Encoding: 'zstd' is not known"),
        ("br", BODY, 415, "Content-Encoding: 'br' is not known"),
    ],
    ids=lambda each: f"{len(each)} bytes" if isinstance(each, bytes) else None,
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
                kind = "request_too_large" if (status, path) == (413, "messages") else "invalid_request_error"
                assert answer["error"]["type"] == kind

    asyncio.run(main())
    assert not [each for each in caplog.records if each.name.startswith("rolemesh_gateway") and each.exc_info]


def test_a_limit_of_tokens_is_refused_by_the_name_that_the_client_gave_it(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, Chat(here.door) as mine:
            with pytest.raises(openai.BadRequestError) as caught:
                await mine.client.chat.completions.create(model="m", messages=ASK, max_completion_tokens=0)
            assert caught.value.param == "max_completion_tokens"

    asyncio.run(main())


PARTS = [{"type": "text", "text": "first"}, {"type": "text", "text": ""}, {"type": "text", "text": "after"}]
PIECES = [{"type": "output_text", "text": "Let me "}, {"type": "output_text", "text": "see."}]
USED = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": PARTS}


def test_the_parts_of_a_message_are_lines_and_those_of_a_turn_are_pieces_in_all_apis(gateway, says):
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat = [
        {"role": "system", "content": PARTS},
        {"role": "assistant", "content": PIECES, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": PARTS},
        {"role": "user", "content": PARTS},
    ]
    items = [
        *chat[:1],
        {"role": "assistant", "content": PIECES},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": PARTS},
        chat[3],
    ]
    turn = [*({**each, "type": "text"} for each in PIECES), USED]
    blocks = [{"role": "assistant", "content": turn}, {"role": "user", "content": [RESULT, *PARTS]}]

    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            async with Chat(here.door) as mine:
                await mine.client.chat.completions.create(model="m", messages=chat)
                await mine.client.responses.create(model="m", input=items)
            async with Messages(here.door) as mine:
                await mine.client.messages.create(model="m", max_tokens=5, system=PARTS, messages=blocks)
            lines = "first\nafter"
            texts = [("system", lines), ("assistant", "Let me see."), ("tool", lines), ("user", lines)]
            for sample in here.talk.samples[1:]:
                assert [(each["role"], each["content"]) for each in sample[:4]] == texts
                assert [each["function"]["name"] for each in sample[1]["tool_calls"]] == ["add"]
            assert len(here.talk.samples) == 4
            assert not here.dialogue.ignored

    asyncio.run(main())


def test_a_text_after_a_call_in_one_message_of_the_assistant_is_noted(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, Messages(here.door) as mine:
            turn = {"role": "assistant", "content": [USED, *PARTS]}
            told = [turn, {"role": "user", "content": [RESULT]}]
            answer = await mine.client.messages.with_raw_response.create(model="m", max_tokens=5, messages=told)
            assert answer.headers["x-rolemesh-ignored"] == "messages[].content[].tool_use"

    asyncio.run(main())


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
WRONG = [
    ("messages", {"messages": [{"role": "user", "content": [PARTS[0], RESULT]}]}, "messages[0]"),
    ("messages", {"messages": [{"role": "user", "content": [RESULT, PARTS[0], RESULT]}]}, "send all of them first"),
    ("messages", {"messages": [{"role": "user", "content": None}]}, "messages[0]: the content is null"),
    ("messages", {"messages": [{"role": "user", "content": [{**RESULT, "tool_use_id": ""}]}]}, ".tool_use_id: a text"),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": [{**USED, "id": 5}]}, GO_ON]},
        "messages[0].id: a text",
    ),
    ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0]: the content is null or missing"),
    ("chat/completions", {"messages": [{"role": "system", "content": None}, GO_ON]}, "messages[0]: the content is"),
    (
        "chat/completions",
        {"messages": [{"role": "tool", "tool_call_id": "c1", "content": None}]},
        "the content is null",
    ),
    ("chat/completions", {"messages": [{"role": "tool", "content": "3"}]}, "messages[0].tool_call_id: a text"),
    (
        "chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, GO_ON]},
        "messages[0].tool_calls[0].id: a text",
    ),
    ("responses", {"input": [{"role": "user", "content": None}]}, "input[0]: the content is null"),
    ("responses", {"input": [{"type": "function_call_output", "output": "3"}]}, "input[0].call_id: a text"),
    ("responses", {"input": [{"type": "function_call", "name": "add", "arguments": "{}"}, GO_ON]}, "input[0].call_id"),
]


@pytest.mark.parametrize(("path", "told", "reason"), WRONG)
def test_messages_that_the_api_refuses_are_refused_with_their_place(gateway, says, path, told, reason):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            body = json.dumps({"model": "m", "max_tokens": 5, **told}).encode()
            status, _, answer = await posted(here.door, path, body)
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert reason in answer["error"]["message"]

    asyncio.run(main())


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    "twice", [b'{"model": "m", "model": "n", ', b'{"a": [{"b": "\\u003a", "b" : 1, "b": {"c": 1}}], ']
)
def test_a_key_that_is_twice_in_an_object_is_refused(gateway, says, path, twice):
    body = twice + b'"input": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "a: \\u003a"}], "z": 1}'

    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            status, _, answer = await posted(here.door, path, body)
            assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            assert "twice in one object" in answer["error"]["message"]
            once = body.replace(b'"model": "n", ', b"").replace(twice, b'{"model": "m", "a": {"b": {"b": "\\u003a"}}, ')
            assert (await posted(here.door, path, once))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", ""])
@pytest.mark.parametrize("expect", ["100-continue", "200-ok"])
def test_an_expect_header_is_met_or_refused_in_the_form_of_the_api(gateway, says, path, expect):
    body = json.dumps({"model": "m", "messages": ASK, "input": "x", "max_tokens": 5}).encode()

    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {here.door.key}"}) as client:
                url = f"{here.door.url}/v1/{path}" if path else here.door.url
                async with client.post(url, data=body, headers={"Expect": expect}) as answer:
                    found = await answer.json()
            if expect == "100-continue":
                assert answer.status == (200 if path else 404)
            else:
                assert answer.status == 417
                assert "send 100-continue" in found["error"]["message"]
            assert ("type" in found) == (path == "messages")

    asyncio.run(main())
