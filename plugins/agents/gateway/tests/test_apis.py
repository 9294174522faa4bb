"""The clients of OpenAI and Anthropic, unchanged, before the gateway. They parse and check every answer."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
from pathlib import Path
from typing import get_type_hints

import aiohttp
import anthropic
import msgspec
import openai
import pytest
from anthropic.types import Message, Usage
from anthropic.types.beta import message_create_params
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, completion_create_params
from openai.types.responses import Response, response_create_params

from rolemesh_agents import AgentError, ToolCall
from rolemesh_gateway import server
from rolemesh_gateway.apis import chat, errors, messages, responses
from rolemesh_gateway.contexts import Contexts
from rolemesh_gateway.requests import NO_PREVIOUS, Answer, RefusedError

CALL = ToolCall("add", {"a": 1, "b": 2}, "call00000")
ABOUT = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": ABOUT}
LONG = "A long answer, with ünïcode. " * 8


@pytest.fixture
def model(says):
    """Calls a tool first, and then says a long text."""
    return lambda messages: says(LONG) if messages[-1]["role"] == "tool" else says("Let me see.", CALL)


def session(door) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {door.key}"})


def openai_client(door) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0)


def anthropic_client(door) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0)


async def chat_turn(client, messages, stream):
    told = {"model": "any", "messages": messages, "tools": [CHAT_TOOL]}
    if not stream:
        return await client.chat.completions.create(**told)
    async with client.chat.completions.stream(**told, stream_options={"include_usage": True}) as events:
        return await events.get_final_completion()


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_call_a_tool_and_go_on_in_the_same_sample(gateway, model, stream):
    async def main():
        async with gateway(model) as here, openai_client(here.door) as client:
            history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
            first = await chat_turn(client, history, stream)
            message = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls"
            assert (message.content, message.tool_calls[0].id) == ("Let me see.", CALL.id)
            assert json.loads(message.tool_calls[0].function.arguments) == CALL.arguments
            history += [
                message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": CALL.id, "content": "3"},
            ]
            second = await chat_turn(client, history, stream)
            assert (second.choices[0].message.content, second.choices[0].finish_reason) == (LONG, "stop")
            assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (7, len(LONG.encode()))
            assert len(here.talk.samples) == 2
            assert [each["role"] for each in here.talk.samples[1]] == [
                "system",
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            assert not here.dialogue.breaks

    asyncio.run(main())


async def response_turn(client, stream, **told):
    told |= {"model": "any", "instructions": "Be brief.", "tools": [{"type": "function", "strict": False, **ABOUT}]}
    if not stream:
        return await client.responses.create(**told)
    async with client.responses.stream(**told) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["history", "id", "references"])
def test_responses_go_on_by_history_and_by_id(gateway, model, stream, by):
    async def main():
        async with gateway(model) as here, openai_client(here.door) as client:
            first = await response_turn(client, stream, input="1 + 2?")
            text, call = first.output
            assert (first.output_text, text.status, first.status) == ("Let me see.", "completed", "completed")
            assert (call.call_id, call.name, json.loads(call.arguments)) == (CALL.id, CALL.name, CALL.arguments)
            told = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
            before = [{"role": "user", "content": "1 + 2?"}, *(each.model_dump() for each in first.output)]
            given = {"input": [*before, told]}
            if by == "id":
                given = {"previous_response_id": first.id, "input": [told]}
            elif by == "references":
                names = [{"type": "item_reference", "id": each.id} for each in first.output]
                given = {"input": [before[0], *names, told]}
                with pytest.raises(openai.BadRequestError, match="msg_9"):
                    await response_turn(client, stream, input=[{"id": "msg_9"}, told])
            second = await response_turn(client, stream, **given)
            assert second.output_text == LONG
            assert second.usage.total_tokens == 7 + len(LONG.encode())
            assert [each["role"] for each in here.talk.samples[1]] == [
                "system",
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            assert len(here.talk.samples) == 2

    asyncio.run(main())


async def message_turn(client, history, stream, **told):
    tool = {"name": "add", "description": "Adds.", "input_schema": ABOUT["parameters"]}
    told |= {"model": "any", "max_tokens": 100, "system": "Be brief.", "messages": history, "tools": [tool]}
    if not stream:
        return await client.messages.create(**told)
    async with client.messages.stream(**told) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_messages_call_a_tool_and_go_on_in_the_same_sample(gateway, model, stream):
    async def main():
        async with gateway(model) as here, anthropic_client(here.door) as client:
            history = [{"role": "user", "content": "1 + 2?"}]
            first = await message_turn(client, history, stream)
            text, use = first.content
            assert (text.text, first.stop_reason) == ("Let me see.", "tool_use")
            assert (use.id, use.name, use.input) == (CALL.id, CALL.name, CALL.arguments)
            told = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "3"}]}
            history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [told]}]
            second = await message_turn(client, history, stream)
            assert (second.content[0].text, second.stop_reason) == (LONG, "end_turn")
            assert (second.usage.input_tokens, second.usage.output_tokens) == (7, len(LONG.encode()))
            assert [each["role"] for each in here.talk.samples[1]] == [
                "system",
                "user",
                "assistant",
                "tool",
                "assistant",
            ]
            assert here.talk.params == [{"max_tokens": 100}] * 2

    asyncio.run(main())


def test_a_program_goes_back_to_its_first_sample_after_a_sub_agent(gateway, says):
    async def main():
        async with gateway(lambda messages: says(f"turn {len(messages)}")) as here, openai_client(here.door) as client:

            async def ask(history):
                answer = await client.chat.completions.create(model="m", messages=history)
                history += [{"role": "assistant", "content": answer.choices[0].message.content}]

            first, second = [{"role": "user", "content": "plan"}], [{"role": "user", "content": "search"}]
            for history in (first, second, first, second):
                await ask(history)
                history.append({"role": "user", "content": "go on"})
            turns = [[each["content"] for each in sample[:4]] for sample in here.talk.samples[1:]]
            assert turns == [["plan", "turn 1", "go on", "turn 3"], ["search", "turn 1", "go on", "turn 3"]]
            assert not here.dialogue.breaks

    asyncio.run(main())


def test_a_stop_text_cuts_the_answer_and_the_limit_of_a_turn_shows(gateway, says):
    async def main():
        async with gateway(lambda messages: says("one STOP two", finish="length")) as here:
            async with anthropic_client(here.door) as client:
                first = await client.messages.create(
                    model="m", max_tokens=5, stop_sequences=["STOP"], messages=[{"role": "user", "content": "go"}]
                )
            assert (first.content[0].text, first.stop_reason, first.stop_sequence) == ("one ", "stop_sequence", "STOP")
            assert here.talk.params == [{"max_tokens": 5, "stop": ["STOP"]}]
            async with openai_client(here.door) as client:
                told = [{"role": "user", "content": "go"}]
                second = await client.chat.completions.create(model="m", messages=told)
                third = await client.responses.create(model="m", input="go")
            assert second.choices[0].finish_reason == "length"
            assert (third.status, third.incomplete_details.reason) == ("incomplete", "max_output_tokens")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a", ""]}, "stop"),
        ({"functions": [{"name": "add"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_a_request_that_the_gateway_cannot_serve_gets_an_error_with_the_parameter(gateway, says, told, param):
    async def main():
        async with gateway(lambda messages: says("no")) as here, openai_client(here.door) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(
                    **{"model": "m", "messages": [{"role": "user", "content": "a"}], **told}
                )
            assert caught.value.param == param
            assert not here.talk.params

    asyncio.run(main())


CALLED = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
BODIES = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "1", "content": "5", "name": "add"},
        ],
        "tools": [CHAT_TOOL],
        "stream_options": {"include_usage": True},
        "stop": ["a"],
    },
    "responses": {
        "model": "m",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "5"},
        ],
        "tools": [{"type": "function", **ABOUT}],
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
    },
    "messages": {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "add", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "5"}]},
        ],
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled"},
    },
}
"""Requests that have all kinds of messages."""


def places(value, path=()):
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


@pytest.mark.parametrize("module", [chat, responses, messages])
def test_a_value_of_a_wrong_kind_at_any_place_is_refused_or_served_and_breaks_nothing(module, says):
    body = BODIES[module.__name__.rpartition(".")[2]]
    refused = served = 0
    for path in places(body):
        for value in (None, 5, -1.5, True, "", "x", [], [5], ["x"], [[]], {}, {"a": 5}):
            changed = copy.deepcopy(body)
            functools.reduce(lambda at, key: at[key], path[:-1], changed)[path[-1]] = value
            try:
                ask = module.parse(changed)
            except RefusedError:
                refused += 1
            else:
                served += 1
                answer = Answer(0, "yes", [CALL], "calls")
                msgspec.json.encode([module.answer(ask, answer), *module.events(ask, answer)])
                Contexts([], []).place(ask.messages, ask.tools)
    assert min(refused, served) > 50


def test_messages_that_the_template_refuses_are_an_error_of_the_request(gateway, says):
    class TemplateError(AgentError):
        pass

    def model(messages):
        if messages[0]["role"] == "system":
            raise TemplateError("the template has no system message")
        return says("yes")

    async def main():
        async with gateway(model) as here, openai_client(here.door) as client:
            question = {"role": "user", "content": "a"}
            with pytest.raises(openai.BadRequestError, match="no system message"):
                await client.chat.completions.create(model="m", messages=[{"role": "system", "content": "b"}, question])
            answer = await client.chat.completions.create(model="m", messages=[question])
            assert answer.choices[0].message.content == "yes"

    asyncio.run(main())


def test_errors_have_the_form_of_each_api(gateway, says):
    async def main():
        async with gateway(lambda messages: says("no")) as here:
            stranger = openai.AsyncOpenAI(base_url=f"{here.door.url}/v1", api_key="wrong", max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
            other = anthropic.AsyncAnthropic(base_url=f"{here.door.url}9", api_key=here.door.key, max_retries=0)
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await other.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "a"}])
            assert caught.value.body["error"]["type"] == "authentication_error"
            with pytest.raises(openai.NotFoundError):
                await openai_client(here.door).embeddings.create(model="m", input="a")
            with pytest.raises(anthropic.BadRequestError):
                await anthropic_client(here.door).messages.create(model="m", max_tokens=1, messages=[])

    asyncio.run(main())


def test_the_list_of_models_has_the_policy_in_both_forms(gateway, says):
    async def main():
        async with gateway(lambda messages: says("no")) as here:
            ours = [each.id async for each in openai_client(here.door).models.list()]
            theirs = [each.id async for each in anthropic_client(here.door).models.list()]
            one = await openai_client(here.door).models.retrieve("my-model")
        assert (ours, theirs, one.id) == (["policy"], ["policy"], "my-model")

    asyncio.run(main())


def test_parameters_without_effect_are_noted(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here, openai_client(here.door) as client:
            await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "a"}],
                temperature=0.1,
                reasoning_effort="low",
                tool_choice="required",
                user="me",
                parallel_tool_calls=False,
                tools=[{"type": "function", "function": {**ABOUT, "strict": True}}],
                extra_body={"sparkle": 3},
            )
            names = {"parallel_tool_calls", "reasoning_effort", "sparkle", "temperature", "tool_choice"}
            assert here.dialogue.ignored == {*names, "tools[].function.strict"}
            raw = await client.responses.with_raw_response.create(model="m", input="a", truncation="auto")
            assert raw.headers["x-rolemesh-ignored"] == "truncation"
        async with gateway(lambda messages: says("yes")) as here, anthropic_client(here.door) as client:
            bad = {"type": "tool_result", "tool_use_id": "1", "content": "x", "is_error": True}
            await client.messages.create(
                model="m",
                max_tokens=5,
                tools=[{"name": "add", "input_schema": {"type": "object"}}],
                tool_choice={"type": "auto", "disable_parallel_tool_use": True},
                thinking={"type": "enabled", "budget_tokens": 1024},
                system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                messages=[{"role": "user", "content": [bad]}],
            )
            assert here.dialogue.ignored == {
                "tool_choice.disable_parallel_tool_use",
                "thinking",
                "messages[].content[].is_error",
            }

    asyncio.run(main())


@pytest.mark.parametrize(
    ("parameters", "module", "body"),
    [
        (completion_create_params.CompletionCreateParamsNonStreaming, chat, chat.ChatBody),
        (response_create_params.ResponseCreateParamsNonStreaming, responses, responses.ResponsesBody),
        (message_create_params.MessageCreateParamsNonStreaming, messages, messages.MessagesBody),
    ],
)
def test_each_parameter_of_the_client_has_one_place_in_the_gateway_and_in_its_readme(parameters, module, body):
    places = [*body.__annotations__, *module.HARMLESS, *module.REFUSED, *module.NOTED]
    assert len(places) == len(set(places))
    extensions = {"top_k", "min_p", "temperature", "top_p"}  # of vLLM, and of older clients of Anthropic
    theirs = get_type_hints(parameters, include_extras=True).keys()
    assert set(places) - extensions - {"stream"} == theirs - extensions - {"stream"}
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert not [name for name in (*module.REFUSED, *module.NOTED) if f"`{name}" not in readme]


def test_the_form_of_an_answer_is_forced_if_the_job_takes_it(gateway, says):
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    told = [{"role": "user", "content": "1 + 2?"}]
    chat_form = {"type": "json_schema", "json_schema": {"name": "total", "schema": schema}}
    form = {"type": "json_schema", "name": "total", "schema": schema}

    async def asked(**more):
        async with gateway(lambda messages: says('{"total": 3}'), **more) as here:
            async with openai_client(here.door) as client:
                body = {"model": "m", "messages": told}
                await client.chat.completions.create(**body, response_format=chat_form)
                await client.chat.completions.create(**body, response_format={"type": "json_object"})
                await client.responses.create(model="m", input="1 + 2?", text={"format": form})
                await client.chat.completions.create(**body, response_format=chat_form, tools=[CHAT_TOOL])
                with pytest.raises(openai.BadRequestError, match="response_format: neither text"):
                    await client.chat.completions.create(**body, response_format={"type": "xml"})
            async with anthropic_client(here.door) as client:
                config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
                await client.messages.create(model="m", max_tokens=9, messages=told, output_config=config)
            return [each.get("structured_outputs") for each in here.talk.params], here.dialogue.ignored

    always = {"output_config.effort", "response_format"}
    names = always | {"output_config.format", "text.format"}
    taken = [{"json": schema}, {"json_object": True}, {"json": schema}, None, {"json": schema}]
    assert asyncio.run(asked(takes=["structured_outputs", "max_tokens"])) == (taken, always)
    assert asyncio.run(asked()) == ([None] * 5, names)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_stream_whose_turn_takes_long_begins_with_pings_and_may_still_fail(gateway, model, api, monkeypatch):
    monkeypatch.setattr(server, "PING_S", 0.02)

    async def ask(door, question):
        if api == "messages":
            async with anthropic_client(door) as client:
                return await message_turn(client, [{"role": "user", "content": question}], True)
        async with openai_client(door) as client:
            if api == "chat":
                return await chat_turn(client, [{"role": "user", "content": question}], True)
            return await response_turn(client, True, input=question)

    async def main():
        async with gateway(model, turns=1) as here:
            for question, fails in ("first", False), ("second", True):
                here.talk.hang = asyncio.Event()
                asyncio.get_running_loop().call_later(0.2, here.talk.hang.set)
                if not fails:
                    assert "Let me see." in (await ask(here.door, question)).model_dump_json()
                    continue
                with pytest.raises((openai.APIError, anthropic.APIError), match="the conversation is over"):
                    await ask(here.door, question)

    asyncio.run(main())


def test_tokens_are_counted_as_the_model_would_read_them(gateway, says):
    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            history = [{"role": "user", "content": "12345"}]
            async with anthropic_client(here.door) as client:
                first = await client.messages.count_tokens(model="m", messages=history, system="123")
                await client.messages.create(model="m", max_tokens=5, messages=history)
                history += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "1"}]
                second = await client.messages.count_tokens(model="m", messages=history)
            async with openai_client(here.door) as client:
                third = await client.responses.input_tokens.count(model="m", input="1234", instructions="1")
                with pytest.raises(openai.BadRequestError):
                    await client.responses.input_tokens.count(model="m", input=[])
            assert (first.input_tokens, second.input_tokens, third.input_tokens) == (8, 9, 5)
            assert len(here.talk.samples) == 2

    asyncio.run(main())


def test_answers_have_all_fields_that_clients_may_read_without_a_look(gateway, says):
    lists = {"metadata", "moderation"}  # of stored chat completions, and of requests that ask for it

    async def main():
        async with gateway(lambda messages: says("yes")) as here, session(here.door) as client:

            async def fields(path, **told):
                async with client.post(f"{here.door.url}/v1{path}", json={"model": "m", **told}) as answer:
                    return await answer.json()

            history = [{"role": "user", "content": "a"}]
            completion = await fields("/chat/completions", messages=history)
            assert CompletionUsage.model_fields.keys() <= completion["usage"].keys()
            assert ChatCompletion.model_fields.keys() - lists <= completion.keys()
            assert Response.model_fields.keys() <= (await fields("/responses", input="a")).keys()
            message = await fields("/messages", messages=history, max_tokens=5)
            assert Message.model_fields.keys() - {"diagnostics"} <= message.keys()
            assert {name for name in Usage.model_fields if "tokens" in name} <= message["usage"].keys() | {
                "output_tokens_details"
            }

    asyncio.run(main())


def test_an_answer_of_the_responses_api_may_be_read_and_forgotten(gateway, model):
    async def main():
        async with gateway(model) as here, openai_client(here.door) as client:
            told = {"metadata": {"a": "b"}, "max_output_tokens": 50, "truncation": "disabled"}
            first = await response_turn(client, False, input="1 + 2?", **told)
            assert (first.metadata, first.max_output_tokens, first.instructions) == ({"a": "b"}, 50, "Be brief.")
            output = {"type": "function_call_output", "call_id": CALL.id, "output": "3"}
            second = await response_turn(client, False, input=[output], previous_response_id=first.id)
            found = await client.responses.retrieve(second.id)
            assert found == second
            items = [each async for each in client.responses.input_items.list(second.id, order="asc", limit=2)]
            assert [each.type for each in items] == ["message", "message", "function_call", "function_call_output"]
            with pytest.raises(openai.BadRequestError, match="complete"):
                await client.responses.cancel(second.id)
            with pytest.raises(openai.BadRequestError, match="stream"):
                await client.responses.retrieve(second.id, stream=True)
            await client.responses.delete(second.id)
            for name in (second.id, "msg_0"):
                with pytest.raises(openai.NotFoundError, match=name):
                    await client.responses.retrieve(name)

    asyncio.run(main())


def test_paths_that_the_gateway_does_not_have_say_what_it_has(gateway, says):
    async def main():
        async with gateway(lambda messages: says("no")) as here, openai_client(here.door) as client:
            with pytest.raises(openai.NotFoundError, match="/v1/chat/completions, /v1/responses"):
                await client.chat.completions.retrieve("chatcmpl-0")
            with pytest.raises(openai.APIStatusError, match="answers POST") as caught:
                await client.get("/chat/completions", cast_to=object)
            assert caught.value.status_code == 405
            twice = openai.AsyncOpenAI(base_url=f"{here.door.url}/v1/v1", api_key=here.door.key)
            assert [each.id async for each in twice.models.list()] == ["policy"]

    asyncio.run(main())


def test_tools_that_the_job_file_leaves_out_are_not_offered_and_noted(gateway, model):
    search, hosted = {"type": "web_search"}, {"type": "web_search_20250305", "name": "web_search"}

    async def main():
        async with gateway(model, leave_out=["web_search"]) as here:
            async with openai_client(here.door) as client:
                mine = {"type": "function", "strict": False, **ABOUT}
                raw = await client.responses.with_raw_response.create(model="m", input="1", tools=[search, mine])
                with pytest.raises(openai.BadRequestError, match="'mcp'; the option leave_out"):
                    await client.responses.create(model="m", input="1", tools=[{"type": "mcp"}, mine])
            async with anthropic_client(here.door) as client:
                told = [{"role": "user", "content": "1 + 2?"}]
                await client.messages.create(model="m", max_tokens=5, messages=told, tools=[hosted])
            assert raw.headers["x-rolemesh-ignored"] == "tools[].web_search"
            assert [[each.name for each in tools] for tools in here.talk.tools[1:]] == [["add"], []]
            assert here.dialogue.ignored == {"tools[].web_search", "tools[].web_search_20250305"}

    asyncio.run(main())


def test_a_client_whose_thread_is_not_kept_is_told_to_send_its_whole_history():
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "go on"}]}
    ask = messages.parse({**body, "thread": {"type": "continue", "previous_message_id": "msg_7"}})
    assert (ask.previous, ask.inherits, ask.kept_as) == ("msg_7", True, "msg_")
    error = errors.anthropic_error(RefusedError(400, "there is no answer", code=NO_PREVIOUS))
    assert error["error"]["details"] == {"error_code": "thread_not_found"}
    for thread in ({}, {"type": "fork"}, {"type": "continue"}, {"type": "continue", "previous_message_id": 7}):
        with pytest.raises(RefusedError, match="thread"):
            messages.parse({**body, "thread": thread})


def test_a_request_that_forbids_calls_gets_them_as_text_and_the_sample_goes_on(gateway, says):
    call = ToolCall("add", {"a": 1}, "c0")
    text = 'Well. {"name": "add", "arguments": {"a": 1}}'

    async def main():
        async with gateway(lambda given: says("Well. ", call)) as here:
            async with openai_client(here.door) as client:
                told = [{"role": "user", "content": "1 + 2?"}]
                body = {"model": "m", "tools": [CHAT_TOOL]}
                made = await client.chat.completions.create(**body, messages=told, tool_choice="none")
                answer = made.choices[0].message
                assert (answer.content, answer.tool_calls, made.choices[0].finish_reason) == (text, None, "stop")
                told = [*told, answer.model_dump(exclude_none=True), {"role": "user", "content": "and now?"}]
                again = await client.chat.completions.create(**body, messages=told, tool_choice="auto")
                assert again.choices[0].message.tool_calls[0].function.name == "add"
                assert len(here.talk.samples) == 2, "one of the environment, and one of this prompt"
                mine = {"type": "function", "strict": False, **ABOUT}
                reply = await client.responses.create(model="m", input="x", tools=[mine], tool_choice="none")
                assert [each.type for each in reply.output] == ["message"]
            async with anthropic_client(here.door) as client:
                tool = {"name": "add", "input_schema": {"type": "object"}}
                told = [{"role": "user", "content": "1?"}]
                body = {"model": "m", "max_tokens": 9, "messages": told, "tools": [tool]}
                reply = await client.messages.create(**body, tool_choice={"type": "none"})
                assert ([each.type for each in reply.content], reply.stop_reason) == (["text"], "end_turn")
            assert "tool_choice" not in here.dialogue.ignored

    asyncio.run(main())


@pytest.mark.parametrize(
    ("module", "given", "forced", "wrong"),
    [
        (
            chat,
            {"messages": [{"role": "user", "content": "x"}], "tools": [CHAT_TOOL]},
            ["required", {"type": "function", "function": {"name": "add"}}, {"type": "allowed_tools"}],
            [
                "any",
                5,
                {"type": "function", "function": {"name": "sub"}},
                {"type": "custom", "custom": {"name": "add"}},
            ],
        ),
        (
            responses,
            {"input": "x", "tools": [{"type": "function", **ABOUT}]},
            ["required", {"type": "function", "name": "add"}, {"type": "allowed_tools"}],
            ["any", [], {"type": "function", "name": "sub"}, {"type": "web_search_preview"}],
        ),
        (
            messages,
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "tools": [{"name": "add"}]},
            [{"type": "any"}, {"type": "tool", "name": "add"}],
            ["any", {"type": "required"}, {"type": "tool", "name": "sub"}],
        ),
    ],
)
def test_a_forced_call_is_noted_and_a_choice_that_cannot_be_is_refused(module, given, forced, wrong):
    for choice in forced:
        ask = module.parse({"model": "m", **given, "tool_choice": choice})
        assert (list(ask.unknown), ask.calls) == (["tool_choice"], True)
        with pytest.raises(RefusedError, match=r"tool_choice: .* (needs tools|has no tool)"):
            module.parse({"model": "m", **given, "tools": [], "tool_choice": choice})
    for choice in wrong:
        with pytest.raises(RefusedError, match=r"^tool_choice: "):
            module.parse({"model": "m", **given, "tool_choice": choice})
    assert module.parse({"model": "m", **given, "tool_choice": None}).unknown == []
