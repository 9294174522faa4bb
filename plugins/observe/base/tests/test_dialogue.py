"""Rows of conversations as cards: messages of the OpenAI API and of chat templates, thinking, calls, results."""

from __future__ import annotations

import pytest

from rolemesh_view.dialogue import Call, Card, cards

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "box"}'}}


def test_each_message_is_a_card_with_its_calls_and_results() -> None:
    found = cards(
        {
            "messages": [
                {"role": "system", "content": "Find it."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Where?"}, {"type": "image_url", "image_url": {}}],
                },
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "name": "look", "content": "empty"},
                {"role": "assistant", "content": "<think>no box</think>\nNowhere."},
            ]
        }
    )
    assert found == [
        Card("system", "Find it."),
        Card("user", "Where?\n[image_url]"),
        Card("assistant", "", calls=(Call("look", '{"at": "box"}'),)),
        Card("tool", "empty", about="look"),
        Card("assistant", "Nowhere.", "no box"),
    ]


@pytest.mark.parametrize(
    ("message", "thinking", "text"),
    [
        ({"content": "a", "reasoning_content": "b"}, "b", "a"),
        ({"content": "<think>cut off"}, "cut off", ""),
        ({"content": "<think>x</think>y<think>z</think>"}, "x\n\nz", "y"),
        ({"content": "1 < 2 <think"}, "", "1 < 2 <think"),
    ],
)
def test_thinking_is_apart_from_the_answer(message: dict[str, str], thinking: str, text: str) -> None:
    [found] = cards({"messages": [{"role": "assistant", **message}]})
    assert (found.thinking, found.text) == (thinking, text)


SAID = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant", "user")]


@pytest.mark.parametrize(
    ("columns", "examples"),
    [
        ({"messages": SAID[:5], "turns": 1}, [1, 2]),
        ({"messages": SAID[:5], "turns": 2}, []),
        ({"messages": SAID, "turns": 2}, []),
        ({"messages": SAID, "turns": 7}, []),
        ({"messages": SAID[:5]}, []),
        ({"messages": SAID, "text": "4"}, [1, 2, 3, 4]),
        ({"prompt": SAID, "completion": "4"}, [1, 2, 3, 4]),
    ],
)
def test_answers_that_the_model_did_not_sample_are_examples(columns: dict[str, object], examples: list[int]) -> None:
    found = cards(columns)
    assert [at for at, card in enumerate(found) if card.example] == examples
    assert found[-1].text == ("4" if "text" in columns or "completion" in columns else found[-1].role)


def test_rows_with_texts_are_conversations_of_two_messages() -> None:
    assert cards({"prompt": "2+2?", "completion": "4", "reward": 1.0}) == [Card("user", "2+2?"), Card("assistant", "4")]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert [card.role for card in cards({"prompt": chat, "completion": "4"})] == ["system", "user", "assistant"]
    assert cards({"question": "2+2?", "answer": "4", "prompt": "Q: 2+2?", "completion": "5"}) == [
        Card("user", "Q: 2+2?"),
        Card("assistant", "5"),
    ]
    assert cards({"reward": 1.0, "group": 2}) == []


@pytest.mark.parametrize(
    "odd", [[None], ["text"], [7], [{"role": 3}], [{"content": {"a": 1}}], [[]], [{"tool_calls": [1]}]]
)
def test_a_thing_that_is_no_message_is_shown_and_breaks_nothing(odd: list[object]) -> None:
    assert len(cards({"messages": odd})) == 1
