"""A conversation through the gateway has the tokens of the same one through calls, with sixteen chat templates.

The soak samples with vLLM, and compares its log-probabilities with those of the trainer's forward pass.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import numpy as np
import openai
import pytest
from tests.waiting import HANG_S

from rolemesh import RankContext
from rolemesh_agents import Start, Task, Tool
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Sampler, Talk
from rolemesh_agents.templates import Template
from rolemesh_gateway import server as servers
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.server import Door, Server

_SPEC = importlib.util.spec_from_file_location(
    "template_bench", Path(__file__).parents[2] / "base" / "tests" / "template_bench.py"
)
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)

TURNS = 4
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
SYSTEM, ASK = "Be brief.", "What is 2 + 3?"
START = Start(
    [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}], [Tool("add", "Add two numbers.", SCHEMA)]
)
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
TEXTS = ("It is ünïcode 5.", "Nothing to add;  two  spaces", "Good bye.")


def talk_of(template: Template, sampler: Sampler, seed: int = 17, **limits: int) -> Talk:
    """A conversation whose turns `sampler` samples."""
    episode = RemoteEpisode(RankContext(), "environment", Task(0, None), 0)
    bounds = ConversationLimits(**{"turns": TURNS, "tokens": 100_000, **limits})
    return Talk(0, seed, START, episode, template, sampler, bounds, {"temperature": 1.0})


async def by_calls(talk: Talk, number: int) -> None:
    """Hold the conversation as a harness of rolemesh does."""
    for _ in range(TURNS):
        turn = await talk.sample()
        answers = [{"role": "tool", "tool_call_id": c.id, "name": c.name, "content": "5"} for c in turn.calls]
        talk.append(answers or [{"role": "user", "content": f"Go on, {number}."}])


async def chat(door: Door, number: int) -> None:
    """Hold the conversation as a program does, with Chat Completions; every second turn is a stream."""
    about = {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA}
    history: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0) as client:
        for turn in range(TURNS):
            told = {"model": "m", "messages": history, "tools": [{"type": "function", "function": about}]}
            if turn % 2:
                answer = await joined(await client.chat.completions.create(**told, stream=True))
            else:
                answer = (await client.chat.completions.create(**told)).choices[0].message.model_dump(exclude_none=True)
            history.append(answer)
            answers = [
                {"role": "tool", "tool_call_id": c["id"], "content": "5"} for c in answer.get("tool_calls") or ()
            ]
            history += answers or [{"role": "user", "content": f"Go on, {number}."}]


async def joined(stream: Any) -> dict[str, Any]:
    """The message of a stream. The client's own helper refuses a turn that its limit of tokens ended."""
    content, calls = "", []
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or ():
            if piece.id:
                calls.append({"id": piece.id, "type": "function", "function": {"name": piece.function.name}})
            about = calls[piece.index]["function"]
            about["arguments"] = about.get("arguments", "") + (piece.function.arguments or "")
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


async def responses(door: Door, number: int) -> None:
    """The same with the Responses API, which keeps the history."""
    tools = [{"type": "function", "name": "add", "description": "Add two numbers.", "parameters": SCHEMA}]
    told: list[Any] = [{"role": "user", "content": ASK}]
    before = None
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0) as client:
        for _ in range(TURNS):
            answer = await client.responses.create(
                model="m", input=told, tools=tools, instructions=SYSTEM, previous_response_id=before
            )
            before = answer.id
            calls = [item.call_id for item in answer.output if item.type == "function_call"]
            told = [{"type": "function_call_output", "call_id": each, "output": "5"} for each in calls]
            told = told or [{"role": "user", "content": f"Go on, {number}."}]


async def messages(door: Door, number: int) -> None:
    """The same with Anthropic's Messages, as streams."""
    tools = [{"name": "add", "description": "Add two numbers.", "input_schema": SCHEMA}]
    history: list[Any] = [{"role": "user", "content": ASK}]
    async with anthropic.AsyncAnthropic(base_url=door.url, api_key=door.key, max_retries=0) as client:
        for _ in range(TURNS):
            told = {"model": "m", "max_tokens": 1000, "system": SYSTEM, "messages": history, "tools": tools}
            counted = await client.messages.count_tokens(**{k: v for k, v in told.items() if k != "max_tokens"})
            async with client.messages.stream(**told) as events:
                answer = await events.get_final_message()
            assert answer.usage.input_tokens == counted.input_tokens
            history.append({"role": "assistant", "content": answer.content})
            uses = [block.id for block in answer.content if block.type == "tool_use"]
            answers = [{"type": "tool_result", "tool_use_id": each, "content": "5"} for each in uses]
            history.append({"role": "user", "content": answers or f"Go on, {number}."})


async def through_gateway(talk: Talk, program: Callable[[Door, int], Any], number: int, breaks: int = 0) -> None:
    """Let `program` hold the conversation through a gateway. `breaks`: requests that continue no sample."""
    server = Server("policy", 8.0, 16)
    await server.start()
    door = server.open(talk.start)
    dialogue = Dialogue(talk, door.desk, (), may_judge=False)
    task = asyncio.ensure_future(dialogue.run(lambda: None))
    try:
        await program(door, number)
    finally:
        task.cancel()
        server.close(door)
        await server.stop()
    assert len(dialogue.breaks) == breaks


def rows(talk: Talk) -> list[dict[str, list[Any]]]:
    """The columns of all samples of the conversation."""
    return [{name: each.tolist() for name, each in found.row().items()} for found in talk.transcripts]


def split(tokenizer: Any, ids: Sequence[int], rng: random.Random) -> list[int]:
    """Write some tokens as single bytes, which no tokenizer would do: a token that is encoded again becomes another."""
    found: list[int] = []
    for each in ids:
        text = tokenizer.convert_ids_to_tokens(each)
        if each in tokenizer.added_tokens_decoder or rng.random() < 0.5:
            found.append(each)
        else:
            found += tokenizer.convert_tokens_to_ids(list(text))
    return found


def scripted(name: str, seed: int) -> Sampler:
    """A model that calls a tool in its first turn and says `TEXTS` after it, in tokens that no tokenizer chooses."""
    template, tokenizer = bench.template_of(name), bench.tokenizer_of(name)
    first = [{"role": "user", "content": ASK}]
    prompt = template.whole(first, START.tools, prompt=True).removesuffix("<|channel>thought\n<channel|>")  # Gemma's
    called = [*first, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    turns = [template.whole(called, START.tools).removeprefix(prompt), *(text + tokenizer.eos_token for text in TEXTS)]
    rng, at = random.Random(seed), iter(turns)

    async def sampler(prompt, params):
        ids = tokenizer.encode(next(at), add_special_tokens=False)
        ids = ids[: next((n + 1 for n, each in enumerate(ids) if each in template.stop_token_ids), len(ids))]
        ids = split(tokenizer, ids, rng)
        logprobs = np.array([rng.uniform(-9, 0) for _ in ids], np.float32)
        return SampledTurn(np.array(ids, np.int32), logprobs, np.zeros(len(ids), np.int64), "stop")

    return sampler


QUICK = ("gptoss", "mistral_nemo", "qwen3")
"""Templates that change earlier turns, in three ways. The others run in the soak."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.soak) for each in bench.NAMES]
)
def test_a_conversation_through_the_gateway_has_the_tokens_of_the_same_one_through_calls(name):
    async def main():
        template = bench.template_of(name)
        loop = talk_of(template, scripted(name, 1))
        await by_calls(loop, 1)
        (row,) = rows(loop)
        assert sum(row["completion_mask"]) > 20
        sampled = [each for each, mine in zip(row["completion_ids"], row["completion_mask"], strict=True) if mine]
        tokenizer = bench.tokenizer_of(name)
        assert tokenizer.encode(tokenizer.decode(sampled), add_special_tokens=False) != sampled
        assert any("5" in str(each.get("content")) for each in loop.transcripts[0].messages if each["role"] == "tool")
        for program in (chat, responses, messages):
            talk = talk_of(template, scripted(name, 1))
            await through_gateway(talk, program, 1)
            assert rows(talk) == [row], program.__name__

    asyncio.run(main())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A random llama in float32 whose vocabulary has the control tokens of all templates."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = bench.tokenizer_of_all(bench.NAMES[0])
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **shape,
        **heads,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(tiny) -> Any:
    """vLLM with the tiny model."""
    import torch

    from rolemesh_vllm import VLLMWorkload

    os.environ.update(VLLMWorkload.env)
    from rolemesh_vllm.engine import Engine
    from rolemesh_vllm.options import EngineOptions

    set_num_threads = torch.set_num_threads  # vllm's worker replaces it for the whole process
    found = Engine(tiny, EngineOptions(model=str(tiny), engine={"max_model_len": 4096}), seed=0, cpus=1)
    found.label(0)
    yield found
    found.close()
    torch.set_num_threads = set_num_threads


@pytest.fixture(scope="module")
def trainer(tiny) -> Any:
    """The model as a trainer loads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny).float().eval()


def difference(trainer: Any, row: dict[str, list[Any]]) -> float:
    """The largest difference between the recorded log-probabilities of a row and the trainer's."""
    import torch

    from rolemesh_training.packing import completion_logprobs

    prompt, ids = np.array(row["prompt_ids"]), np.array(row["completion_ids"])
    mask = np.array(row["completion_mask"])
    with torch.no_grad():
        mine = completion_logprobs(trainer, [prompt], [ids], torch.device("cpu"), counted=[mask]).numpy()
    return float(np.abs(mine - np.array(row["logprobs"], np.float32)[mask == 1]).max())


@pytest.mark.soak
@pytest.mark.parametrize("name", bench.NAMES)
def test_trainer_and_engine_agree_on_every_turn_that_went_through_the_gateway(name, engine, trainer, record_property):
    template, differences = Template(bench.tokenizer_of_all(name)), []

    async def sampler(prompt, params):
        made = await engine.sample(prompt, dict(params))
        return SampledTurn(made["ids"], made["logprobs"], np.zeros(len(made["ids"]), np.int64), made["finish"])

    async def main():
        for number, program in enumerate((chat, responses, messages)):
            loop = talk_of(template, sampler, number, turn_tokens=24)
            await by_calls(loop, number)
            talk = talk_of(template, sampler, number, turn_tokens=24)
            await through_gateway(talk, program, number)
            assert rows(talk) == rows(loop), program.__name__
            (row,) = rows(talk)
            assert talk.turns == TURNS
            differences.append(difference(trainer, row))

    asyncio.run(main())
    record_property("difference", max(differences))
    print(f"{name}: {max(differences):.1e}")
    assert max(differences) < 1e-4


async def less(free: asyncio.Event, door: Door, number: int) -> None:
    """Keep half of a turn, leave a stream in its middle, leave before a turn has ended, and make the history short. No
    turn ends while `free` is not set."""
    async with openai.AsyncOpenAI(base_url=f"{door.url}/v1", api_key=door.key, max_retries=0) as client:
        impatient = client.with_options(timeout=0.05)

        async def turn(history: Sequence[Any]) -> str:
            answer = await client.chat.completions.create(model="m", messages=history)
            return answer.choices[0].message.content or ""

        history: list[Any] = [{"role": "user", "content": f"Begin {number}."}]
        half = (await turn(history))[:8] + "..."
        history += [{"role": "assistant", "content": half}, {"role": "user", "content": "Go on."}]
        async with await client.chat.completions.create(model="m", messages=history, stream=True) as chunks:
            await anext(chunks)
        history += [{"role": "assistant", "content": await turn(history)}, {"role": "user", "content": "And then?"}]
        free.clear()
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(model="m", messages=history)
        free.set()
        history += [{"role": "assistant", "content": await turn(history)}, {"role": "user", "content": "At last?"}]
        await turn(history)
        await turn([{"role": "user", "content": f"Until now {len(history)} messages. Go on."}])


@pytest.mark.soak
def test_trainer_and_engine_agree_on_what_clients_have_shortened_left_or_compacted(engine, trainer, monkeypatch):
    monkeypatch.setattr(servers, "LAST_S", HANG_S)  # no stream ends before its client has left
    template = Template(bench.tokenizer_of_all("qwen3"))
    sampled, free = 0, asyncio.Event()
    free.set()

    async def sampler(prompt, params):
        nonlocal sampled
        made = await engine.sample(prompt, dict(params))
        await free.wait()
        sampled += len(made["ids"])
        return SampledTurn(made["ids"], made["logprobs"], np.zeros(len(made["ids"]), np.int64), made["finish"])

    talk = talk_of(template, sampler, turn_tokens=24, turns=20)
    asyncio.run(through_gateway(talk, partial(less, free), 1, breaks=1))
    found = rows(talk)
    assert len(found) >= 3
    assert sum(sum(row["completion_mask"]) for row in found) == sampled, "every finished turn is trained, once"
    assert max(difference(trainer, row) for row in found) < 1e-4
