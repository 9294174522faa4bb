"""Reasoning has a field of its own in three APIs, and the answers of tools go to the calls that their ids name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anthropic
import openai
import pytest

from rolemesh_agents import Message, ToolCall, Turn
from rolemesh_gateway.contexts import Begin, Contexts, Continue

THOUGHT, SAID = "I think\nand think.", "  Five.\n"
GO_ON = {"role": "user", "content": "Go on."}
ASK = [{"role": "user", "content": "2 + 3?"}]
ABOUT = {"name": "add", "description": "Adds two numbers.", "parameters": {"type": "object", "properties": {}}}


def clients(door: Any) -> tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]:
    return (
        openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0),
        anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0),
    )


def test_reasoning_that_is_apart_has_a_field_of_its_own_in_each_api_and_stream(gateway, says):
    async def main() -> None:
        async with gateway(lambda messages: says(SAID, reasoning=THOUGHT)) as here:
            open_ai, claude = clients(here.door)
            async with open_ai, claude:
                message = (await open_ai.chat.completions.create(model="m", messages=ASK)).choices[0].message
                assert (message.content, message.reasoning, message.reasoning_content) == (SAID, THOUGHT, THOUGHT)
                thought = said = ""
                async for chunk in await open_ai.chat.completions.create(model="m", messages=ASK, stream=True):
                    delta = chunk.choices[0].delta
                    thought += getattr(delta, "reasoning_content", None) or ""
                    said += delta.content or ""
                assert (said, thought) == (SAID, THOUGHT)

                answer = await open_ai.responses.create(model="m", input="2 + 3?")
                async with open_ai.responses.stream(model="m", input="2 + 3?") as events:
                    for found in (answer, await events.get_final_response()):
                        assert [item.type for item in found.output] == ["reasoning", "message"]
                        assert (found.output[0].content[0].text, found.output_text) == (THOUGHT, SAID)
                kept = [{"id": item.id, "type": "item_reference"} for item in answer.output]
                again = await open_ai.responses.create(model="m", input=[*ASK, *kept, GO_ON])
                assert again.output_text == SAID

                about = {"model": "m", "max_tokens": 100, "messages": ASK}
                block, text = (await claude.messages.create(**about)).content
                assert (block.type, block.thinking, text.text) == ("thinking", THOUGHT, SAID)
                async with claude.messages.stream(**about) as stream:
                    block, text = (await stream.get_final_message()).content
                assert (block.thinking, text.text, bool(block.signature)) == (THOUGHT, SAID, True)

    asyncio.run(main())


def test_reasoning_in_the_history_of_a_program_reaches_the_chat_template(gateway, says):
    changed = "  Six.\n"

    async def main() -> None:
        async with gateway(lambda messages: says(SAID)) as here:
            open_ai, claude = clients(here.door)
            async with open_ai, claude:
                history = [*ASK, {"role": "assistant", "content": changed, "reasoning": THOUGHT}, GO_ON]
                await open_ai.chat.completions.create(model="m", messages=history)
                item = {"type": "reasoning", "id": "x", "content": [{"type": "reasoning_text", "text": THOUGHT}]}
                item["summary"] = []
                await open_ai.responses.create(
                    model="m", input=[*ASK, item, {"role": "assistant", "content": changed + " "}, GO_ON]
                )
                blocks = [{"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": changed}]
                told = [*ASK, {"role": "assistant", "content": [*blocks, {"type": "text", "text": "x"}]}, GO_ON]
                await claude.messages.create(model="m", max_tokens=9, messages=told)
            begun: list[list[Message]] = here.talk.samples[1:]
            assert [sample[1].get("reasoning_content") for sample in begun] == [THOUGHT] * len(begun)
            assert not here.dialogue.ignored

    asyncio.run(main())


@pytest.mark.parametrize("ids", [("a", "b"), ("c0", "c1")], ids=["the client's own", "those of the turn"])
def test_answers_in_another_order_and_with_ids_of_the_client_keep_their_calls(gateway, says, ids):
    calls = [ToolCall("add", {"a": n}, f"c{n}") for n in range(2)]

    def model(messages: Sequence[Message]) -> Any:
        return says("", *calls) if messages[-1]["role"] == "user" else says("done")

    async def main() -> None:
        async with gateway(model) as here:
            open_ai, claude = clients(here.door)
            async with open_ai, claude:
                body = {"model": "m", "tools": [{"type": "function", "function": ABOUT}]}
                turn = (await open_ai.chat.completions.create(**body, messages=ASK)).choices[0].message.model_dump()
                for call, number in zip(turn["tool_calls"], ids, strict=True):
                    call["id"] = number
                told = [{"role": "tool", "tool_call_id": number, "content": f"of {number}"} for number in ids]
                await open_ai.chat.completions.create(**body, messages=[*ASK, turn, *told[::-1]])
            given = [each for each in here.talk.samples[-1] if each["role"] == "tool"]
            assert [(each["tool_call_id"], each["content"]) for each in given] == [
                ("c1", f"of {ids[1]}"),
                ("c0", f"of {ids[0]}"),
            ]

    asyncio.run(main())


def test_a_turn_without_the_reasoning_in_its_text_continues_the_sample():
    made = Contexts(ASK, ())
    turn = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{SAID}"}
    made.answered(0, ASK, turn, 0)
    bare = {**turn, "content": SAID}

    assert made.place([*ASK, bare, GO_ON], ()) == Continue(0, [GO_ON])
    assert isinstance(made.place([*ASK, {**turn, "content": "Six."}, GO_ON], ()), Begin)


def test_a_turn_with_a_call_that_nobody_can_read_is_a_text(gateway):
    text = 'I add.\n<tool_call>{"name": "add"</tool_call><tool_call>{"name": "add", "arguments": {}}</tool_call>'
    turn = Turn(
        "I add.\n", [ToolCall("add", {}, "c0")], ['<tool_call>{"name": "add"</tool_call>'], [1], "stop", 7, text
    )

    async def main() -> None:
        async with gateway(lambda messages: turn) as here:
            open_ai, claude = clients(here.door)
            async with open_ai, claude:
                body = {"model": "m", "tools": [{"type": "function", "function": ABOUT}], "messages": ASK}
                choice = (await open_ai.chat.completions.create(**body)).choices[0]
            assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")

    asyncio.run(main())
