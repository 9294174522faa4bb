"""Prompts have the text that transformers, TRL's rules and vLLM's server give them, with the templates of sixteen model
families. No engine starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_torch.chats import chat_text
from rolemesh_vllm import VLLMOptions
from rolemesh_vllm.engine_args import check_temperature

FOLDER = Path(__file__).parents[3] / "agents/base/tests/chat_templates"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
ASK = {"role": "user", "content": "What is 2 + 3?"}
BEGUN = {"role": "assistant", "content": "The answer is"}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {}}}
ANSWER = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "5"}
NO_TOOLS = {"deepseek_v3_1", "gemma", "phi3_5", "smollm2"}
"""Templates that list no tools, as those of `FOLDER` say in `test_templates.py` of rolemesh-agents."""
NEEDS_TOOLS = "hermes3"
"""A template that transformers and vLLM's server cannot render without tools either."""


def tokenizer_of(name: str) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    source = (FOLDER / f"{name}.jinja").read_text()
    words = Tokenizer(models.WordLevel({"<eos>": 0}, unk_token="<eos>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", bos_token="<bos>", chat_template=source)


def rendered(tokenizer: Any, messages: list[Any], **how: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_text_of_transformers_with_tools_and_begun_answers(name: str) -> None:
    tokenizer = tokenizer_of(name)
    for tools in ([], TOOLS):
        if name == NEEDS_TOOLS and not tools:
            continue
        columns, how = ({"tools": tools}, {"tools": tools}) if tools else ({}, {})
        if name in NO_TOOLS and tools:
            with pytest.raises(RolemeshError, match="does not read 'tools', which prompt 3 gives it"):
                chat_text(tokenizer, [ASK], columns, prompt=True, name="prompt 3")
            continue
        prompted = rendered(tokenizer, [ASK], add_generation_prompt=True, **how)
        assert chat_text(tokenizer, [ASK], columns, prompt=True) == prompted
        assert ("Adds." in prompted) == bool(tools)
        assert chat_text(tokenizer, [ASK, BEGUN], columns, prompt=False) == rendered(tokenizer, [ASK, BEGUN], **how)
        begun = chat_text(tokenizer, [ASK, BEGUN], columns, prompt=True)
        assert begun == rendered(tokenizer, [ASK, BEGUN], continue_final_message=True, **how)
        assert begun.endswith("The answer is")


@pytest.mark.parametrize("name", NAMES)
def test_text_parts_are_joined_as_vllms_server_joins_them(name: str) -> None:
    from vllm.renderers.hf import _detect_content_format

    tokenizer = tokenizer_of(name)
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "2 + 3?"}]
    whole = _detect_content_format(tokenizer.chat_template, default="string") == "openai"
    columns = {} if name in NO_TOOLS else {"tools": TOOLS}
    joined = {**ASK, "content": parts if whole else "What is\n2 + 3?"}
    expected = rendered(tokenizer, [joined], add_generation_prompt=True, **columns)
    assert chat_text(tokenizer, [{**ASK, "content": parts}], columns, prompt=True) == expected
    assert "'text'" not in expected


@pytest.mark.parametrize("name", sorted({*NAMES} - NO_TOOLS))
def test_a_call_without_content_has_an_empty_one(name: str) -> None:
    tokenizer = tokenizer_of(name)
    call = {"role": "assistant", "tool_calls": [CALL]}
    expected = rendered(tokenizer, [ASK, {**call, "content": ""}, ANSWER], tools=TOOLS, add_generation_prompt=True)
    for message in ({**call, "content": None}, call):
        assert chat_text(tokenizer, [ASK, message, ANSWER], {"tools": TOOLS}, prompt=True) == expected
    assert "None" not in expected


def test_a_chat_that_a_template_refuses_is_named_with_its_roles() -> None:
    with pytest.raises(RolemeshError, match=r"template refuses prompt 3, a chat of the roles user, user: .*alternate"):
        chat_text(tokenizer_of("mistral_nemo"), [ASK, ASK], {}, prompt=True, name="prompt 3")


def test_a_template_gets_its_variables() -> None:
    tokenizer = tokenizer_of("qwen3")
    quiet = chat_text(tokenizer, [ASK], {"chat_template_kwargs": {"enable_thinking": False}}, prompt=True)
    assert quiet == rendered(tokenizer, [ASK], enable_thinking=False, add_generation_prompt=True)
    assert quiet != chat_text(tokenizer, [ASK], {}, prompt=True)


IMAGE = {"type": "image_url", "image_url": {"url": "data:x"}}


@pytest.mark.parametrize(
    ("messages", "columns", "message"),
    [
        ([{**ASK, "content": [IMAGE]}], {}, "prompt 3 has a message of the role user with a part image_url"),
        ([{**ASK, "content": 5}], {}, "prompt 3 has a message of the role user whose content is int"),
        ([], {}, "prompt 3 has no messages"),
        ([ASK, {"role": "assistant", "tool_calls": [CALL]}], {}, "prompt 3 ends with a call of a tool"),
        ([ANSWER], {"tools": "{"}, "the column tools of prompt 3 is '{'"),
        ([ASK], {"chat_template_kwargs": "x"}, "the column chat_template_kwargs of prompt 3 is 'x'"),
        ([ASK], {"chat_template_kwargs": {"tokenize": True}}, "prompt 3 has 'tokenize', an argument"),
        ([ASK], {"chat_template_kwargs": {"enable_thought": 1}}, "does not read 'enable_thought', which prompt 3"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused_with_its_place(
    messages: list[Any], columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(RolemeshError, match=message) as error:
        chat_text(tokenizer_of("qwen2_5"), messages, columns, prompt=True, name="prompt 3")
    assert error.value.remedy


@pytest.mark.parametrize("place", ["batch", "row"])
def test_an_engine_takes_the_columns_of_the_batch_or_of_the_files_row(place: str) -> None:
    from rolemesh_vllm.engine import Engine

    engine: Any = object.__new__(Engine)
    engine.tokenizer, engine.options = tokenizer_of("qwen3"), VLLMOptions(model="x")
    told: list[str] = []
    engine.tokenizer.encode = lambda text, **_: told.append(text) or [1]
    given = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    columns = {name: [value] for name, value in given.items()} if place == "batch" else {"row": [given]}
    engine.tokens(Batch({"messages": [[ASK]], **columns}))
    expected = rendered(engine.tokenizer, [ASK], tools=TOOLS, enable_thinking=False, add_generation_prompt=True)
    assert told == [expected]
    engine.options = VLLMOptions(model="x", chat_template=False)
    with pytest.raises(RolemeshError, match=r"row 9 has tools and chat_template_kwargs.*chat_template is false"):
        engine.tokens(Batch({"messages": [[ASK]], **columns}), lambda _: "row 9")


@given(temperature=st.one_of(st.floats(0, 0.02), st.floats(0, 3), st.sampled_from([0.0, 0.01, 1e-9, 2.0])))
def test_the_options_take_a_temperature_that_vllm_takes_as_it_is(temperature: float) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError

    try:
        same = SamplingParams(temperature=temperature).temperature == temperature
    except VLLMClientError:
        same = False
    errors = check_temperature(VLLMOptions(model="x", temperature=temperature))
    assert same == (not errors)
    assert all(error.where == "temperature" and error.remedy for error in errors)


@given(
    shape=st.fixed_dictionaries(
        {"temperature": st.one_of(st.just(0.0), st.floats(0.001, 0.02), st.floats(0, 2))},
        optional={
            "top_p": st.floats(0.1, 1),
            "top_k": st.integers(-1, 9),
            "min_p": st.floats(0, 1),
            "seed": st.integers(-1, 9),
            "stop": st.sampled_from(["a", ["a", "a"], ["b"], None]),
            "stop_token_ids": st.lists(st.integers(0, 3)),
            "logit_bias": st.dictionaries(st.integers(0, 9), st.floats(-300, 300)),
            "repetition_penalty": st.floats(0.5, 2),
        },
    )
)
def test_a_parameter_that_vllm_would_change_is_refused_and_others_are_taken(shape: dict[str, Any]) -> None:
    from rolemesh_vllm.engine import exactly

    if 0 < shape["temperature"] < 0.01 or shape.get("seed") == -1:
        with pytest.raises(ValueError, match=r"vLLM samples with (temperature 0\.01|seed None), not"):
            exactly(shape)
    else:
        made = exactly(shape)
        random = ("top_p", "top_k", "min_p") if shape["temperature"] else ()
        for name in ("temperature", *random, "logit_bias", "repetition_penalty"):
            assert name not in shape or getattr(made, name) == shape[name]
