"""The gateway answers as vLLM's own server, if the model samples the same tokens: three APIs, with and without streams.

`make test` compares with answers that vLLM's server has given, in `vllm_answers.json`. The soak asks the server again,
for all chat templates; with ROLEMESH_RECORD=1 it writes the file. `make judges` installs OpenAI's vocabulary, which it
needs for GPT-OSS.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.waiting import HANG_S
from vllm_cases import ALWAYS, APIS, PARSERS, REASONING, TOOLS, Case, cases
from vllm_differences import reason_of
from vllm_forms import body_of, path_of, read

from rolemesh import RankContext
from rolemesh_agents import Start, Task
from rolemesh_agents.conversations.limits import ConversationLimits
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.sampling import SampledTurn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.templates import Template
from rolemesh_gateway import server as servers
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.server import Server

_SPEC = importlib.util.spec_from_file_location(
    "template_bench", Path(__file__).parents[2] / "base" / "tests" / "template_bench.py"
)
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)
RECORDED = Path(__file__).with_name("vllm_answers.json")
QUICK = ("qwen2_5", "qwen3_coder", "gptoss")
"""Templates of `make test` and `make test-all`."""
OPENAI = Path(sys.prefix, "judges/quicktok/data/o200k.vocab")
"""OpenAI's vocabulary: the number of texts, then the length, the bytes and the token of each."""


def turns(name: str) -> list[tuple[str, Case, str]]:
    """Return the turns for a template, each with the place of reasoning and an API."""
    template, tokenizer = Template(bench.tokenizer_of_all(name)), bench.tokenizer_of_all(name)
    ends = [tokenizer.convert_ids_to_tokens(each) for each in template.stop_token_ids]

    def cut(text: str) -> str:
        return text[: min((place for end in ends if (place := text.find(end)) >= 0), default=len(text))]

    found = []
    for case in cases(template, cut):
        if case.apart and name in ALWAYS:
            opening, closing = template.form.reasoning
            said = case.said.replace("<think>\n", opening).replace("</think>", closing)
            case = Case(case.name, said, case.tools, apart=True)
        for place in ("text", "apart") if case.apart and name in REASONING and name not in ALWAYS else ("text",):
            found += [(place, case, api) for api in APIS if not (case.stop and api.startswith("responses"))]
    return found


def sampled(name: str, case: Case) -> list[int]:
    """Return the tokens that the model samples, with the one that ends its turn."""
    tokenizer = bench.tokenizer_of_all(name)
    return list(tokenizer.encode(case.said + (case.end or tokenizer.eos_token), add_special_tokens=False))


def body(case: Case, api: str) -> dict[str, Any]:
    return body_of(api, TOOLS if case.tools else [], choice=case.choice, stop=list(case.stop), most=case.most or 1000)


async def asked(name: str, place: Any, todo: list[tuple[Case, str]]) -> list[dict[str, Any]]:
    """Return the gateway's answers: each request is a conversation of its own."""
    template, tokenizer = Template(bench.tokenizer_of_all(name), reasoning=place), bench.tokenizer_of_all(name)
    server = Server("policy", 8.0, 16)
    await server.start()
    client = httpx.AsyncClient(timeout=HANG_S, limits=httpx.Limits(max_keepalive_connections=0))
    found = []
    for case, api in todo:
        ids = sampled(name, case)

        async def sampler(prompt: Any, params: Any, ids: list[int] = ids) -> SampledTurn:
            stops = params.get("stop") or ()
            for size in range(1, len(ids) + 1) if stops else ():
                if any(stop in tokenizer.decode(ids[:size], skip_special_tokens=True) for stop in stops):
                    ids = ids[:size]
                    break
            finish = "length" if len(ids) > params["max_tokens"] else "stop"
            ids = ids[: params["max_tokens"]]
            return SampledTurn(np.array(ids, np.int32), np.zeros(len(ids), np.float32), np.zeros(len(ids)), finish)

        start = Start([{"role": "user", "content": "begin"}])
        episode = RemoteEpisode(RankContext(), "environment", Task(0, None), 0)
        talk = Talk(0, 17, start, episode, template, sampler, ConversationLimits(tokens=100_000), {})
        door = server.open(start)
        dialogue = Dialogue(talk, door.desk, ("max_tokens", "stop"), False)
        task = asyncio.ensure_future(dialogue.run(lambda: None))
        try:
            headers = {"Authorization": f"Bearer {door.key}", "x-api-key": door.key}
            told = await client.post(f"{door.url}{path_of(api)}", json=body(case, api), headers=headers)
            found.append(read(api, told.status_code, told.text))
        finally:
            task.cancel()
            server.close(door)
    await client.aclose()
    await server.stop()
    return found


def compared(name: str, place: str, case: Case, api: str, mine: Any, other: Any) -> str:
    """Return the difference of two answers that no reason explains, or ""."""
    if mine == other or reason_of(name, place, case.name, api, mine, other):
        return ""
    where = f"{name}, {api}, reasoning {place}: {case.name}, {case.said!r}"
    return f"{where}\n    gateway {mine}\n    vLLM    {other}"


def wrong(name: str, answers: dict[str, Any]) -> list[str]:
    """Return the differences between the gateway's answers and vLLM's."""
    found = []
    for place in ("text", "apart"):
        todo = [(case, api) for at, case, api in turns(name) if at == place]
        mine = asyncio.run(asked(name, place, todo))
        for (case, api), answer in zip(todo, mine, strict=True):
            found.append(compared(name, place, case, api, answer, answers[f"{name}|{place}|{case.name}|{api}"]))
    return list(filter(None, found))


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch) -> None:
    """No client leaves here, so the gateway need not wait for one before the last event of a stream."""
    monkeypatch.setattr(servers, "LAST_S", 0.001)


@pytest.mark.parametrize("name", QUICK)
def test_the_gateway_answers_as_vllm_has_answered(name):
    different = wrong(name, json.loads(RECORDED.read_text()))
    assert not different, "\n".join(different)


def questions(names: Sequence[str], tokens: Callable[[str, Case], list[int]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the questions for the judge about templates, each with its key in the answers."""
    for name in names:
        for place, case, api in turns(name):
            parser = REASONING.get(name, "") if place == "apart" or name in ALWAYS else ""
            about = {"template": str(bench.FOLDER / f"{name}.jinja"), "calls": PARSERS[name], "reasoning": parser}
            asked = {**about, "api": api, "body": body(case, api), "ids": tokens(name, case)}
            yield f"{name}|{place}|{case.name}|{api}", asked


def llama(folder: Path) -> Callable[[str, Case], list[int]]:
    """Write a model with the control tokens of all templates, and return what gives it the tokens of a turn."""
    from transformers import GenerationConfig, LlamaConfig

    tokenizer = bench.tokenizer_of_all(bench.NAMES[0])
    tokenizer.save_pretrained(folder / "model")
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 4096}
    config = LlamaConfig(vocab_size=len(tokenizer), **shape, eos_token_id=tokenizer.eos_token_id)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder / "model")
    ends = [tokenizer.convert_tokens_to_ids(end) for end in sorted({*bench.ENDS.values(), "<|im_end|>"})]
    GenerationConfig(eos_token_id=ends).save_pretrained(folder / "model")
    return sampled


def gpt_oss(folder: Path) -> Callable[[str, Case], list[int]]:
    """Write a GPT-OSS with OpenAI's vocabulary, and return what gives it the tokens of a turn. vLLM takes its answers
    apart by these tokens."""
    import openai_harmony
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import GenerationConfig, GptOssConfig, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    data, place, texts = OPENAI.read_bytes(), 4, {}
    while place < len(data):
        start = place + 2
        place = start + struct.unpack_from("<H", data, place)[0]
        texts[data[start:place]] = struct.unpack_from("<I", data, place)[0]
        place += 4
    lines = [b"%s %d\n" % (base64.b64encode(text), token) for text, token in sorted(texts.items(), key=lambda x: x[1])]
    (folder / "o200k_base.tiktoken").write_bytes(b"".join(lines))
    encoding = openai_harmony.load_harmony_encoding("HarmonyGptOss")

    def tokens(text: str) -> list[int]:
        return list(encoding.encode(text, allowed_special="all"))

    letters = bytes_to_unicode()
    vocabulary = {"".join(letters[each] for each in text): token for text, token in texts.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    marks = [encoding.decode([token]) for token in range(len(texts), 200_019)]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in marks])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|return|>").save_pretrained(folder / "model")
    config = GptOssConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=2,
        num_experts_per_tok=1,
        intermediate_size=64,
        vocab_size=201_088,
        max_position_embeddings=4096,
        rope_scaling=None,
    )
    config.architectures = ["GptOssForCausalLM"]
    config.save_pretrained(folder / "model")
    ends = [tokens(end)[0] for end in ("<|return|>", "<|endoftext|>", "<|call|>")]
    GenerationConfig(eos_token_id=ends).save_pretrained(folder / "model")
    return lambda _, case: tokens(case.said + (case.end or "<|return|>"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """``judged(name)``: the answers of vLLM's server for a template, and for those that share its model."""

    @cache
    def told(harmony: bool) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("judged")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
            tokens = (gpt_oss if harmony else llama)(folder)
            names = [name for name in PARSERS if (name == "gptoss") == harmony]
            keys, requests = zip(*questions(names, tokens), strict=True)
            (folder / "asked.json").write_text(json.dumps(requests))
            here = Path(__file__).parent
            env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(here)}
            command = [
                sys.executable,
                "vllm_judge.py",
                *(folder / each for each in ("model", "asked.json", "told.json")),
            ]
            with (folder / "log").open("wb") as log:
                ended = subprocess.run(command, env=env, cwd=here, stdout=log, stderr=subprocess.STDOUT, check=False)
        assert ended.returncode == 0, (folder / "log").read_text()[-3000:]
        answers = dict(zip(keys, json.loads((folder / "told.json").read_text()), strict=True))
        if os.environ.get("ROLEMESH_RECORD"):
            others = {k: v for k, v in json.loads(RECORDED.read_text()).items() if k.partition("|")[0] not in names}
            kept = {key: answer for key, answer in answers.items() if key.partition("|")[0] in QUICK}
            written = dict(sorted({**others, **kept}.items(), key=lambda each: QUICK.index(each[0].partition("|")[0])))
            RECORDED.write_text(json.dumps(written, ensure_ascii=False, indent=0) + "\n")
        return answers

    def of(name: str) -> dict[str, Any]:
        if name == "gptoss" and not OPENAI.exists():
            pytest.skip(f"OpenAI's vocabulary is not in {OPENAI}: make judges")
        return told(name == "gptoss")

    return of


@pytest.mark.soak
@pytest.mark.parametrize("name", PARSERS)
def test_the_gateway_answers_as_vllms_server(name, judged):
    different = wrong(name, judged(name))
    assert not different, "\n".join(different)


@pytest.mark.soak
@pytest.mark.parametrize("name", QUICK)
def test_the_recorded_answers_are_those_of_vllms_server(name, judged):
    answers = judged(name)
    recorded = {key: each for key, each in json.loads(RECORDED.read_text()).items() if key.partition("|")[0] == name}
    assert recorded == {key: answers[key] for key in recorded}, "run with ROLEMESH_RECORD=1 to record them again"
