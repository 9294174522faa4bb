"""Which requests continue a sample, which begin one, and what differs."""

from __future__ import annotations

import copy
import json

import pytest

from rolemesh_agents import Tool
from rolemesh_gateway.contexts import Begin, Contexts, Continue, Repeat

SYSTEM = {"role": "system", "content": "You are brief."}
FIRST = {"role": "user", "content": "What is 1 + 2?"}
CALL = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TURN = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "c7", "content": "3"}
NEITHER = "message {} is neither the user's nor a tool's"
ADD = Tool("add", "Adds.", {"type": "object"})


def contexts() -> Contexts:
    """One sample with a turn that calls a tool."""
    made = Contexts([SYSTEM, FIRST], [ADD])
    made.answered(0, [SYSTEM, FIRST], TURN, 0)
    return made


def test_messages_of_the_environment_begin_no_new_sample():
    made = Contexts([SYSTEM, FIRST], [ADD])
    assert made.place([SYSTEM, FIRST], [ADD]) == Continue(0, [])


def test_another_prompt_begins_a_sample_without_a_complaint():
    made = Contexts([SYSTEM, FIRST], [ADD])
    assert made.place([FIRST], [ADD]) == Begin("")


def test_the_answer_of_a_tool_continues():
    assert contexts().place([SYSTEM, FIRST, TURN, TOLD], [ADD]) == Continue(0, [TOLD])


@pytest.mark.parametrize(
    "change",
    [
        {"content": None},
        {"content": "  \n"},
        {"content": []},
        {"refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"b":2, "a":1}'}}]},
        {"tool_calls": [{**CALL, "index": 0}]},
    ],
)
def test_a_harmless_change_of_a_turn_continues(change):
    assert contexts().place([SYSTEM, FIRST, {**TURN, **change}, TOLD], [ADD]) == Continue(0, [TOLD])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("1.0", "1"),
        ("1e2", "100"),
        ("-0.0", "0"),
        ('[1.0, {"b": 2.50}]', '[1,{"b":2.5}]'),
        ("12345678901234567890", "12345678901234567000"),
        ("1e400", "1e400"),
        ("1.10", "1.1"),
    ],
)
def test_numbers_that_javascript_writes_again_continue(said, told):
    """`told` is JSON.stringify(JSON.parse(said))."""

    def turn(arguments):
        return {**TURN, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": f'{{"a": {arguments}}}'}}]}

    made = Contexts([SYSTEM, FIRST], [ADD])
    made.answered(0, [SYSTEM, FIRST], turn(said), 0)
    assert made.place([SYSTEM, FIRST, turn(told), TOLD], [ADD]) == Continue(0, [TOLD])
    other = turn("2.75")
    assert made.place([SYSTEM, FIRST, other, TOLD], [ADD]) != Continue(0, [TOLD])


def test_other_ids_of_calls_continue_if_they_fit():
    turn, told = copy.deepcopy(TURN), {**TOLD, "tool_call_id": "other"}
    turn["tool_calls"][0]["id"] = "other"
    assert contexts().place([SYSTEM, FIRST, turn, told], [ADD]) == Continue(0, [told])


def test_parts_of_a_text_and_another_name_of_the_system_continue():
    def parts(*texts):
        return [{"type": "text", "text": each} for each in texts]

    made, turn = Contexts([SYSTEM, FIRST], [ADD]), {**TURN, "content": "I add."}
    made.answered(0, [SYSTEM, FIRST], turn, 0)
    told = [{"role": "developer", "content": parts("You are brief.")}, FIRST, {**turn, "content": parts("I ", "add.")}]
    assert made.place([*told, TOLD], [ADD]) == Continue(0, [TOLD])
    told[0] = {"role": "system", "content": parts("You are", "brief.")}
    assert made.place([*told, TOLD], [ADD]) == Begin("message 0 has changed"), "two texts are two lines"


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([SYSTEM, {**FIRST, "content": "What is 1 + 3?"}, TURN, TOLD], [ADD], "message 1 has changed"),
        ([SYSTEM, FIRST, {"role": "assistant", "content": "3"}, FIRST], [ADD], "message 2 has changed"),
        ([SYSTEM, FIRST, TURN, TOLD], [], "the tools have changed"),
        ([SYSTEM, FIRST, TURN, SYSTEM, FIRST], [ADD], NEITHER.format(3)),
        ([{**SYSTEM, "content": "Be rude."}, FIRST, TURN, TOLD], [ADD], "message 0 has changed"),
        ([SYSTEM, FIRST, TURN, FIRST, {"role": "assistant", "content": "3"}, FIRST], [ADD], NEITHER.format(4)),
        # The first requests of other agents:
        ([{**SYSTEM, "content": "Be rude."}, FIRST], [ADD], ""),
        ([SYSTEM, {"role": "user", "content": "Another question"}], [ADD], ""),
        ([SYSTEM, FIRST], [], ""),
        ([SYSTEM, FIRST], [ADD], ""),
        ([SYSTEM, {**FIRST, "content": "0 + 0?"}, {"role": "assistant", "content": "0"}, FIRST], [ADD], ""),
    ],
)
def test_a_changed_history_begins_a_sample_and_says_where(messages, tools, reason):
    assert contexts().place(messages, tools) == Begin(reason)


def test_changed_arguments_of_a_call_begin_a_sample():
    turn = {**TURN, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": json.dumps({"a": 1, "b": 3})}}]}
    assert contexts().place([SYSTEM, FIRST, turn, TOLD], [ADD]) == Begin("message 2 has changed")


def test_a_request_without_the_last_turn_begins_a_sample():
    made = contexts()
    made.answered(0, [SYSTEM, FIRST, TURN, TOLD], {"role": "assistant", "content": "3"}, 1)
    assert made.place([SYSTEM, FIRST, TURN, TOLD], [ADD]) == Begin("messages from 4 on are missing")


def test_a_repeated_request_gets_the_same_turn_only_if_the_client_says_so():
    assert contexts().place([SYSTEM, FIRST], [ADD], again=True) == Repeat(0)
    assert isinstance(contexts().place([SYSTEM, FIRST], [ADD]), Begin)


def test_a_program_returns_to_an_earlier_sample():
    made = contexts()
    side = [{"role": "user", "content": "a sub-agent"}]
    made.began(1, side, [])
    made.answered(1, side, {"role": "assistant", "content": "done"}, 1)
    assert made.place([SYSTEM, FIRST, TURN, TOLD], [ADD]) == Continue(0, [TOLD])
    assert made.place([*side, {"role": "assistant", "content": "done"}, FIRST], []) == Continue(1, [FIRST])


def test_equal_samples_are_continued_from_the_newest():
    made = contexts()
    made.began(1, [SYSTEM, FIRST], [ADD])
    made.answered(1, [SYSTEM, FIRST], TURN, 1)
    assert made.place([SYSTEM, FIRST, TURN, TOLD], [ADD]) == Continue(1, [TOLD])


def test_half_of_a_surrogate_pair_is_compared_as_other_texts():
    turn = {**TURN, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a": "\\ud800"}'}}]}
    made = Contexts([SYSTEM, FIRST], [ADD])
    made.answered(0, [SYSTEM, FIRST], turn, 0)
    assert made.place([SYSTEM, FIRST, turn, TOLD], [ADD]) == Continue(0, [TOLD])
    assert made.place([SYSTEM, FIRST, TURN, TOLD], [ADD]) == Begin("message 2 has changed")


@pytest.mark.parametrize(
    ("restored", "continues"), [("x = 1\n", True), ("x = 1\n</code>", True), ("x = 1\n</b>", False)]
)
def test_a_client_may_put_the_stop_text_back_at_the_end_of_a_turn(restored, continues):
    made = Contexts([FIRST], [])
    made.answered(0, [FIRST], {"role": "assistant", "content": "x = 1\n"}, 0, "</code>")
    more = {"role": "user", "content": "Go on."}
    found = made.place([FIRST, {"role": "assistant", "content": restored}, more], [])
    assert isinstance(found, Continue if continues else Begin)
