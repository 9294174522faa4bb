"""The service `sample`: tokens in, tokens out, in shared batches; new weights meet it as the option `update` says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from rolemesh.api.service import CalledBy
from rolemesh.api.workload import stable_seed
from rolemesh_vllm import VLLMWorkload

PROMPT = np.arange(5, 40, dtype=np.int32)
LONG = {"max_tokens": 60, "temperature": 1.0, "ignore_eos": True}


def run(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run calls at the same time, as the loop of a rank does."""

    async def together() -> list[Any]:
        return await asyncio.gather(*calls)

    return asyncio.run(together())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in ("ids", "logprobs", "versions", "finish"))


@pytest.fixture
def update(rollout: VLLMWorkload, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Choose how new weights meet calls in this test."""
    return lambda how: monkeypatch.setattr(rollout.options, "update", how)


@pytest.fixture(autouse=True)
def _nothing_left(rollout: VLLMWorkload) -> Iterator[None]:
    """All requests end, and no KV cache stays in use."""
    yield
    assert len(rollout.engine.requests) == 0
    pool = scheduler(rollout).kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1  # vLLM keeps one for itself


def scheduler(rollout: VLLMWorkload) -> Any:
    return rollout.engine.llm.llm_engine.engine_core.engine_core.scheduler


def test_sample_has_the_tokens_and_logprobs_of_generate(rollout: VLLMWorkload, prompts: Any) -> None:
    made = rollout.generate(prompts(3))
    calls = [
        rollout.sample(ids, {"max_tokens": 8, "seed": stable_seed(7, rollout.ctx.step, int(group), number % 3)})
        for number, (ids, group) in enumerate(zip(made["prompt_ids"], made["group"], strict=True))
    ]
    for row, answer in enumerate(run(*calls)):
        assert np.array_equal(answer["ids"], made["completion_ids"][row])
        assert np.array_equal(answer["logprobs"], made["logprobs"][row])
        assert answer["versions"].tolist() == [rollout.version] * len(answer["ids"])
        assert answer["finish"] == made["finish_reason"][row]
    assert (answer["ids"].dtype, answer["logprobs"].dtype, answer["versions"].dtype) == (np.int32, np.float32, np.int64)


def test_a_call_has_the_same_answer_alone_and_among_others(rollout: VLLMWorkload) -> None:
    alone = [run(rollout.sample(PROMPT[: 3 + i], LONG | {"seed": i}))[0] for i in range(9)]
    together = run(*(rollout.sample(PROMPT[: 3 + i], LONG | {"seed": i}) for i in range(9)))
    assert all(same(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_structured_outputs_have_the_log_probabilities_of_the_allowed_tokens(
    rollout: VLLMWorkload, temperature: float
) -> None:
    params = {"max_tokens": 5, "temperature": temperature, "seed": 3, "stop_token_ids": [0]}
    chosen = params | {"structured_outputs": {"choice": ["w3w4", "w5w4"]}}
    answer, other = run(rollout.sample(PROMPT, chosen), rollout.sample(PROMPT, params))
    masked = run(rollout.sample(PROMPT, params | {"max_tokens": 1, "allowed_token_ids": [6, 8]}))[0]
    assert (answer["ids"].tolist(), answer["finish"]) == ([masked["ids"][0], 7, 0], "stop")
    assert answer["logprobs"][0] == pytest.approx(masked["logprobs"][0], abs=1e-6)
    assert answer["logprobs"][1:].tolist() == [0.0, 0.0]  # one token is allowed
    assert same(other, run(rollout.sample(PROMPT, params))[0])


def test_generate_runs_beside_calls(rollout: VLLMWorkload, prompts: Any) -> None:
    expected, alone = rollout.generate(prompts(2)), run(rollout.sample(PROMPT, LONG | {"seed": 1}))[0]

    async def beside() -> tuple[Any, Any]:
        call = asyncio.ensure_future(rollout.sample(PROMPT, LONG | {"seed": 1}))
        await tokens(rollout, 5)
        return rollout.generate(prompts(2)), await call

    made, answer = asyncio.run(beside())
    assert made == expected
    assert same(answer, alone)


async def tokens(rollout: VLLMWorkload, number: int) -> None:
    """Wait until a running request has `number` tokens."""
    while not any(request.num_output_tokens >= number for request in scheduler(rollout).running):
        await asyncio.sleep(0)


def test_weights_between_tokens_continue_the_call_with_the_new_version(
    rollout: VLLMWorkload, update: Any, new_weights: Any, greedy: Any
) -> None:
    update("between_tokens")
    old, weights = new_weights(100, 100)
    rollout.load_weights(weights)
    new, newer = new_weights(101, 101)

    async def updated() -> Any:
        call = asyncio.ensure_future(rollout.sample(PROMPT, LONG | {"temperature": 0.0}))
        await tokens(rollout, 10)
        rollout.load_weights(newer)
        return await call

    answer = asyncio.run(updated())
    changed = int(np.flatnonzero(answer["versions"] == 101)[0])
    assert answer["versions"].tolist() == [100] * changed + [101] * (60 - changed)
    assert 10 <= changed < 60
    ids = answer["ids"].tolist()
    assert ids[:changed] == greedy(old, PROMPT, 60)[:changed]
    seen = np.concatenate([PROMPT, answer["ids"][:changed]])
    assert ids[changed] == greedy(new, seen, 1)[0]


@pytest.mark.parametrize("how", ["between_turns", "drain"])
def test_a_call_that_runs_ends_with_the_old_weights(
    rollout: VLLMWorkload, update: Any, new_weights: Any, how: str
) -> None:
    update(how)
    rollout.load_weights(new_weights(110, 110)[1])
    expected = run(rollout.sample(PROMPT, LONG | {"seed": 3}))[0]

    async def updated() -> Any:
        call = asyncio.ensure_future(rollout.sample(PROMPT, LONG | {"seed": 3}))
        await tokens(rollout, 10)
        rollout.load_weights(new_weights(111, 111)[1])
        return await call

    assert same(asyncio.run(updated()), expected)
    assert run(rollout.sample(PROMPT, LONG | {"seed": 3}))[0]["versions"].tolist() == [111] * 60


def test_with_drain_a_call_waits_for_the_weights_of_its_step(
    rollout: VLLMWorkload, update: Any, new_weights: Any
) -> None:
    update("drain")
    rollout.load_weights(new_weights(120, 120)[1])

    async def ahead() -> Any:
        with rollout.ctx.serving(CalledBy("agent", 0, rollout.ctx.step + 1)):
            call = asyncio.ensure_future(rollout.sample(PROMPT, LONG | {"seed": 3}))
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert len(rollout.engine.requests) == 0
        rollout.load_weights(new_weights(121, 121)[1])
        rollout.ctx.step += 1
        return await call

    answer = asyncio.run(ahead())
    assert answer["versions"].tolist() == [121] * 60
    assert answer["waited"] >= 20 * 0.002
    rollout.ctx.step -= 1


def test_a_cancelled_call_frees_its_cache_and_another_goes_on(rollout: VLLMWorkload) -> None:
    expected = run(rollout.sample(PROMPT, LONG | {"seed": 1}))[0]

    async def cancelled() -> Any:
        first, second = (asyncio.ensure_future(rollout.sample(PROMPT, LONG | {"seed": seed})) for seed in (0, 1))
        await tokens(rollout, 5)
        first.cancel()  # which runs the engine for both
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(scheduler(rollout).running) == 1
        return await second

    assert same(asyncio.run(cancelled()), expected)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {"seed": 1}, "at least one token id"),
        ([1.5], {"seed": 1}, "at least one token id"),
        ([4000], {"seed": 1}, "(?i)vocab"),
        ([5], {}, "needs a seed"),
        ([5], {"seed": 1, "top_q": 0.5}, "no parameter 'top_q'.*top_p"),
        ([5], {"seed": 1, "top_p": 7.0}, "top_p must be in"),
        ([5], {"seed": 1, "temperature": 0.002}, "with temperature 0.01, not 0.002; set temperature to 0.01"),
    ],
)
def test_a_call_that_cannot_be_answered_has_an_error(
    rollout: VLLMWorkload, prompt: list[int], params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(rollout.sample(prompt, params))


@pytest.mark.parametrize(("length", "limit"), [(127, 9), (128, 9), (400, 9), (5, 0)])
def test_a_prompt_ends_where_there_is_no_room(rollout: VLLMWorkload, length: int, limit: int) -> None:
    answer = run(rollout.sample(np.full(length, 7), {"max_tokens": limit, "temperature": 0.0, "ignore_eos": True}))[0]
    assert len(answer["ids"]) == (length == 127)
    assert answer["finish"] == "length"


def test_weights_that_are_not_numbers_are_an_error(rollout: VLLMWorkload, new_weights: Any) -> None:
    weights = new_weights(130, 130)[1]
    nan = {name: np.full_like(array, np.nan) if "norm" in name else array for name, array in weights.items()}
    rollout.load_weights(nan)
    with pytest.raises(RuntimeError, match="log-probability of token 0 is nan; its weights are version 130"):
        run(rollout.sample(PROMPT, {"seed": 1, "max_tokens": 4}))
    rollout.load_weights(weights)
