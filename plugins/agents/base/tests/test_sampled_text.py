"""A turn means what was sampled: its text, its calls, the texts that stop it, and the answers to its calls."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
import pytest
from template_bench import NAMES, template_of, tokenizer_of

from rolemesh_agents import Start, Tool, Turn
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.templates import FORMATS, Template
from rolemesh_agents.templates.formats.schemas import argument_schema, typed

TEXT = {"type": "string"}
TOOLS = [Tool(name, "", {"type": "object", "properties": {"city": TEXT}}) for name in ("weather", "time")]
CALLS = {
    "gemma4": "".join(f'<|tool_call>call:{n}{{city:<|"|>Oslo<|"|>}}<tool_call|>' for n in ("weather", "time")),
    "qwen2_5": "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "Oslo"}}}}\n</tool_call>'
        for name in ("weather", "time")
    ),
    "kimi_k2": "<|tool_calls_section_begin|>"
    + "".join(
        f'<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{{"city": "Oslo"}}<|tool_call_end|>'
        for at, name in enumerate(("weather", "time"))
    )
    + "<|tool_calls_section_end|>",
}
CODE = "    if n < 2:\n        return n\n"


class Silent:
    """An episode that hears nothing."""

    hears, seconds = False, 0.0


def talk_of(name: str, *texts: str, tools: Any = TOOLS, params: Any = None, **about: Any) -> Talk:
    """A conversation in which the model says `texts`."""
    tokenizer, at = tokenizer_of(name), iter(texts)

    async def sampler(prompt: Any, given: Any) -> SampledTurn:
        ids = [*tokenizer.encode(next(at), add_special_tokens=False), tokenizer.eos_token_id]
        prompts.append(tokenizer.decode(prompt))
        return SampledTurn(np.array(ids, np.int32), np.zeros(len(ids), np.float32), np.zeros(len(ids)), "stop")

    prompts: list[str] = []
    episode: Any = Silent()
    limits = ConversationLimits(tokens=100_000)
    start = Start([{"role": "user", "content": "begin"}], tools)
    talk = Talk(0, 0, start, episode, Template(tokenizer, **about), sampler, limits, params or {})
    talk.prompts = prompts
    return talk


def said(name: str, text: str, params: Any = None, **about: Any) -> Turn:
    return asyncio.run(talk_of(name, text, params=params, **about).sample())


@pytest.mark.parametrize("name", NAMES)
def test_white_space_at_both_ends_of_a_turn_is_kept(name):
    for tools in ((), TOOLS):
        assert said(name, CODE, tools=tools).content == CODE


@pytest.mark.parametrize("name", CALLS)
def test_without_tools_a_turn_calls_nothing_and_its_text_is_what_was_sampled(name):
    turn = said(name, f"I look.\n{CALLS[name]}", tools=())

    assert (turn.calls, turn.unparsed) == ([], ())
    seen = tokenizer_of(name).decode(turn.ids, skip_special_tokens=True)
    assert turn.content == turn.text == seen


@pytest.mark.parametrize("name", CALLS)
def test_the_text_of_a_turn_has_its_calls_and_its_content_the_text_before_them(name):
    turn = said(name, f"I look.\n{CALLS[name]}")

    assert [call.name for call in turn.calls] == ["weather", "time"]
    assert turn.content == "I look.\n"
    assert turn.text == tokenizer_of(name).decode(turn.ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "text", ['{"name": "Alice", "age": 30}', '{"name": "a"} {"name": "b"}', '{"type": "x", "a": 1}']
)
def test_a_json_answer_of_llama_is_no_call(text):
    turn = said("llama3_1", text)

    assert (turn.content, turn.calls, turn.unparsed) == (text, [], ())


@pytest.mark.parametrize(
    ("text", "stop", "content", "found"),
    [
        ("Act.\nObservation:\nmade up", ["Observation:\n"], "Act.\n", "Observation:\n"),
        ("\nUser: hm", ["\nUser:"], "", "\nUser:"),
        ("One.\n\nTwo.", "\n\n", "One.", "\n\n"),
        ("a b STOP c", ["b STOP", "STOP", "b S"], "a ", "b S"),
        ("a b STOP c", ["STOP", "b STOP"], "a b ", "STOP"),
        ("nothing", ["STOP"], "nothing", ""),
    ],
)
def test_a_turn_ends_before_the_stop_text_that_is_complete_first(text, stop, content, found):
    turn = said("qwen2_5", text, {"stop": stop})

    assert (turn.content, turn.stop) == (content, found)


def test_special_tokens_before_a_stop_text_belong_to_the_turn():
    turn = said("gptoss", "<|channel|>final<|message|>\nUser: hm", {"stop": ["\nUser:"]})
    assert (turn.content, turn.reasoning, turn.stop) == ("", "", "\nUser:")

    turn = said("gemma4", "<|channel>thought\nI think.<channel|>STOP Five.", {"stop": ["STOP"]}, tools=())
    assert (turn.content, turn.reasoning, turn.stop) == ("", "I think.", "STOP")


@pytest.mark.parametrize("tools", [(), TOOLS])
def test_special_tokens_are_no_text(tools):
    assert said("gptoss", " to=functions.time<|channel|>comm", tools=tools).text == " to=functions.timecomm"
    assert said("gemma4", "One.<|tool_response>Two.", tools=tools).content == "One.Two."


def test_a_stop_text_cuts_a_call_and_is_looked_for_after_the_least_number_of_tokens():
    cut = said("qwen2_5", f"I look.\n{CALLS['qwen2_5']}", {"stop": ["Oslo"]})
    assert (cut.calls, cut.stop) == ([], "Oslo")

    least = len(tokenizer_of("qwen2_5").encode("a STOP b", add_special_tokens=False))
    assert said("qwen2_5", "a STOP b STOP c", {"stop": ["STOP"], "min_tokens": least}).content == "a STOP b "


def test_a_further_stop_token_is_no_part_of_the_text():
    tokenizer = tokenizer_of("qwen2_5")
    ids = tokenizer.encode("One.\n", add_special_tokens=False)

    async def sampler(prompt: Any, given: Any) -> SampledTurn:
        return SampledTurn(np.array(ids, np.int32), np.zeros(len(ids), np.float32), np.zeros(len(ids)), "stop")

    talk = talk_of("qwen2_5", params={"stop_token_ids": [ids[-1]]})
    talk._sampler = sampler
    turn = asyncio.run(talk.sample())

    assert turn.content == tokenizer.decode(ids[:-1])
    assert turn.ids == ids


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "llama3_1", "smollm2", "glm4moe"])
@pytest.mark.parametrize("ends", [True, False])
def test_reasoning_is_in_the_text_or_apart_and_never_lost(name, ends):
    text = "<think>\nI think.\n</think>\n\nFive." if ends else "<think>\nI think and think"

    assert said(name, text).content == text
    apart = said(name, text, reasoning="apart")
    assert apart.reasoning == ("\nI think.\n" if ends else "\nI think and think")
    assert apart.content == ("\n\nFive." if ends else "")


def test_reasoning_between_special_tokens_is_apart():
    turn = said("gemma4", "<|channel>thought\nI think.<channel|>Five.")
    assert (turn.reasoning, turn.content) == ("I think.", "Five.")

    turn = said("gptoss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|> 5\n")
    assert (turn.reasoning, turn.content) == ("hm", " 5\n")


def test_earlier_reasoning_in_the_text_of_a_history_is_reasoning_for_the_template():
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n5"}]
    messages = [*history, {"role": "user", "content": "b"}]
    tokenizer = tokenizer_of("qwen3")

    shown = tokenizer.decode(template_of("qwen3").opening(messages))

    assert shown == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backwards", [False, True])
def test_each_answer_stays_with_the_call_that_its_id_names(name, backwards):
    async def main() -> tuple[str, str]:
        talk = talk_of(name, CALLS[name], "done")
        turn = await talk.sample()
        answers = [{"role": "tool", "tool_call_id": c.id, "content": f"{c.name} of Oslo"} for c in turn.calls]
        talk.append(answers[::-1] if backwards else answers)
        counted = talk.count([], sample=0)
        await talk.sample()
        assert counted == len(tokenizer_of(name).encode(talk.prompts[1], add_special_tokens=False))
        return talk.prompts[1].removeprefix(talk.prompts[0]), talk.transcripts[0].messages

    text, messages = asyncio.run(main())
    shown = text[text.index("</tool_call>" if name == "qwen2_5" else "Oslo") :]
    assert shown.index("weather of Oslo") < shown.index("time of Oslo")
    assert [each["name"] for each in messages if each["role"] == "tool"] == ["weather", "time"]
    if name == "gemma4":
        assert 'response:weather{value:<|"|>weather of Oslo' in text
        assert 'response:time{value:<|"|>time of Oslo' in text
    if name == "kimi_k2":
        assert re.search(r"## Return of functions\.weather:0\W+n?weather of Oslo", text)


def test_only_the_answer_of_the_second_call_is_named_after_it():
    async def main() -> str:
        talk = talk_of("gemma4", CALLS["gemma4"], "done")
        turn = await talk.sample()
        talk.append([{"role": "tool", "tool_call_id": turn.calls[1].id, "content": "14h05"}])
        await talk.sample()
        return talk.prompts[1]

    assert 'response:time{value:<|"|>14h05' in asyncio.run(main())


def test_a_call_whose_id_an_earlier_call_has_gets_another_one():
    async def main() -> list[str]:
        talk = talk_of("kimi_k2", CALLS["kimi_k2"], CALLS["kimi_k2"])
        ids = []
        for _ in range(2):
            turn = await talk.sample()
            talk.append([{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in turn.calls])
            ids += [call.id for call in turn.calls]
        return ids

    assert asyncio.run(main()) == ["functions.weather:0", "functions.time:1", "call00100", "call00101"]


DEFS = {
    "$defs": {
        "Year": {"type": "integer"},
        "Name": {"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]},
        "Text": TEXT,
    }
}
VALUES = [
    (TEXT, "2024", "2024"),
    ({"anyOf": [TEXT, {"type": "null"}]}, "2024", "2024"),
    ({"anyOf": [TEXT, {"type": "null"}]}, "null", None),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
    ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
    ({"type": "string", "nullable": True}, "null", None),
    ({"allOf": [TEXT, {"minLength": 1}]}, "007", "007"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": ["1", 5]}, "5", 5),
    ({"const": "true"}, "true", "true"),
    ({"$ref": "#/$defs/Year"}, "2024", 2024),
    ({"$ref": "#/$defs/Name"}, "2024", "2024"),
    ({"$ref": "#/$defs/Name"}, "null", None),
    ({"type": "integer"}, " 007 ", 7),
    ({"type": "number"}, "1e3", 1000),
    ({"type": "boolean"}, "True", True),
    ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
    ({"properties": {"a": TEXT}}, '{"a": "1"}', {"a": "1"}),
    ({"type": "integer"}, "many", "many"),
    ({"type": "integer"}, "[1]", [1]),
    ({}, "2024", "2024"),
    (True, "[1]", "[1]"),
    ({"$ref": "#/$defs/Missing"}, "1", "1"),
    ({"$ref": "#"}, "x", "x"),
]


@pytest.mark.parametrize(("schema", "text", "value"), VALUES)
def test_an_argument_without_quotes_has_a_type_that_its_schema_allows(schema, text, value):
    found = typed(text, schema, DEFS)

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"properties": {"a": TEXT}}, TEXT),
        ({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"a": TEXT}}}}, TEXT),
        ({"additionalProperties": TEXT}, TEXT),
        ({"additionalProperties": False}, {}),
        ({"allOf": [{"properties": {"b": {}}}, {"properties": {"a": TEXT}}]}, {"anyOf": [TEXT]}),
        ({"properties": 5}, {}),
        (None, {}),
    ],
)
def test_the_schema_of_an_argument_is_found_wherever_it_is(parameters, found):
    assert argument_schema(parameters, "a") == found


@pytest.mark.parametrize("form", ["qwen-coder", "glm"])
def test_a_reference_in_the_schema_of_a_tool_is_followed(form):
    about = {"properties": {"year": {"$ref": "#/$defs/Name"}}, **DEFS}
    text = {
        "qwen-coder": "<tool_call>\n<function=f>\n<parameter=year>\n2024\n</parameter>\n</function>\n</tool_call>",
        "glm": "<tool_call>f\n<arg_key>year</arg_key>\n<arg_value>2024</arg_value>\n</tool_call>",
    }[form]

    assert FORMATS[form].parse(text, {"f": about}).calls[0].arguments == {"year": "2024"}
