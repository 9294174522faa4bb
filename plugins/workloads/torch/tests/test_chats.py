"""The answer to a chat as tokens, and what is no answer. `tests/judges/test_rows.py` has TRL's for the same rows."""

from __future__ import annotations

from typing import Any

import pytest

from rolemesh.errors import RolemeshError
from rolemesh_torch.chats import answer_of, answered

ASK = {"role": "user", "content": "ask"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add"}}]}
TURN = "{% for m in messages %}<{{ m.content }}{% for c in m.tool_calls or [] %} call{% endfor %} end {% endfor %}"


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class Words:
    """A tokenizer whose tokens are words, and whose turns do not end with its end of texts."""

    eos_token_id = "eos"

    def __init__(self, template: str | None = TURN, around: str = "") -> None:
        self.template, self.around = template, around

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[str]]:
        before, _, after = self.around.partition("text") if add_special_tokens else ("", "", "")
        return {"input_ids": [*before.split(), *text.split(), *after.split()]}

    def get_chat_template(self, tools: Any = None) -> str:
        if self.template is None:
            raise ValueError("tokenizer.chat_template is not set")
        return self.template

    def apply_chat_template(self, conversation: Any, tokenize: bool, **how: Any) -> str:
        from jinja2 import Template

        text = Template(self.get_chat_template()).render(messages=conversation)
        return text + "<" if how["add_generation_prompt"] else text


@pytest.mark.parametrize(
    ("asked", "answers", "prompt", "found"),
    [
        ([ASK], ["yes", "no way"], "<ask end", ["<yes end", "<no way end"]),
        ([ASK], [[says("yes")]], "<ask end", ["<yes end"]),
        ([ASK], [[ASK, says("yes")], [ASK, says("no")]], "<ask end", ["<yes end", "<no end"]),
        ([{"role": "system", "content": "be"}, ASK], [[ASK, says("yes")]], "<be end <ask end", ["<yes end"]),
        ([ASK], [[says("yes"), ASK, says("so")]], "<ask end", ["<yes end <ask end <so end"]),
        ([], [[ASK, says("yes")]], "", ["<ask end <yes end"]),
        ("ask ", ["yes", "no way"], "ask", ["yes eos", "no way eos"]),
        ([ASK], [[CALL]], "<ask end <", ["call end"]),
    ],
)
def test_an_answer_ends_as_its_turn_does(asked: Any, answers: list[Any], prompt: str, found: list[str]) -> None:
    same, ends = answered(Words(), asked, answers, {})
    assert [same, *ends] == [each.split() for each in (prompt, *found)]


def test_a_call_that_the_template_does_not_write_is_refused() -> None:
    with pytest.raises(RolemeshError, match="does not read 'tool_calls'"):
        answered(Words("{% for m in messages %}{{ m.content }} {% endfor %}"), [ASK], [[CALL]], {})


def test_a_model_without_a_chat_template_is_named_as_such() -> None:
    with pytest.raises(RolemeshError, match=r"the model has no chat template(.|\n)*chat: false"):
        answered(Words(None), [ASK], ["yes"], {})
    assert answered(Words(None), "ask", [" yes"], {}) == (["ask"], [["yes", "eos"]])


@pytest.mark.parametrize(
    ("around", "asked", "prompt"),
    [
        ("", "ask ", "ask"),
        ("begin text", "ask ", "begin ask"),
        ("begin text eos", "ask ", "begin ask"),
        ("text eos", "ask ", "ask"),
        ("mask sop text", "ask ", "mask sop ask"),
        ("begin text", "begin ask ", "begin ask"),
        ("begin text", "", "begin"),
    ],
)
def test_a_plain_text_begins_as_each_text_of_the_tokenizer_and_ends_once(around: str, asked: str, prompt: str) -> None:
    same, (answer,) = answered(Words(None, around), asked, ["yes"], {})
    assert (same, answer) == (prompt.split(), ["yes", "eos"])


def test_the_answer_is_the_first_column_that_has_one() -> None:
    names = ("answer", "response")
    assert answer_of({"answer": None, "response": "It is 4."}, names) == "It is 4."
    assert answer_of({"answer": 4, "response": "It is 4."}, names) == "4"
    assert answer_of({"answer": [says("4")]}, names) == [says("4")]


@pytest.mark.parametrize("value", [{"value": "Paris", "aliases": []}, ["Paris", "City of Paris"], []])
def test_a_value_that_is_no_answer_is_refused(value: Any) -> None:
    with pytest.raises(RolemeshError, match="neither a text nor the messages of a chat"):
        answer_of({"answer": value}, ["answer"])


@pytest.mark.parametrize("row", [{"answer": None}, {"reply": "4"}])
def test_a_row_without_an_answer_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(RolemeshError, match="no answer in the columns answer"):
        answer_of(row, ["answer"])
