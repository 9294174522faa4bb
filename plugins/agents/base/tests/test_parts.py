"""A turn in parts has the tokens of its parts, and ends as the turn would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from rolemesh.api.workload import stable_seed
from rolemesh_agents.conversations.parts import in_parts, may_be_divided
from rolemesh_agents.conversations.sampling import SampledTurn

PROMPT = np.arange(3, dtype=np.int32)


class Model:
    """Counts up from the last token, and notes its calls."""

    def __init__(self, stop_at: int = 10**6, room: int = 10**6) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.stop_at, self.room = stop_at, room

    async def sample(self, prompt: np.ndarray, params: Mapping[str, Any]) -> SampledTurn:
        self.asked.append((len(prompt), dict(params)))
        end = min(int(prompt[-1]) + params["max_tokens"], self.room)
        ids = np.arange(prompt[-1] + 1, min(end, self.stop_at) + 1, dtype=np.int32)
        finish = "stop" if end >= self.stop_at else "length"
        return SampledTurn(ids, -ids.astype(np.float32), ids.astype(np.int64) // 5, finish, 0.5)

    def turn(self, part: int | None, **params: Any) -> SampledTurn:
        return asyncio.run(in_parts(self.sample, PROMPT, {"max_tokens": 10, "seed": 9} | params, part))


@pytest.mark.parametrize("part", [1, 3, 5, 10, 11, None])
def test_parts_add_up_to_the_turn(part: int | None) -> None:
    for model in (Model(), Model(stop_at=9), Model(room=8)):
        whole, parts = model.turn(None), model.turn(part)
        for name in ("ids", "logprobs", "versions"):
            assert np.array_equal(getattr(parts, name), getattr(whole, name))
        assert parts.finish == whole.finish


def test_a_part_continues_the_tokens_before_it_with_a_seed_of_its_own() -> None:
    model = Model()
    turn = model.turn(4, min_tokens=6)
    assert [(length, given["max_tokens"], given["min_tokens"]) for length, given in model.asked] == [
        (3, 4, 4),
        (7, 4, 2),
        (11, 2, 0),
    ]
    assert [given["seed"] for _, given in model.asked] == [9, stable_seed(9, "part", 4), stable_seed(9, "part", 8)]
    assert turn.seconds == 1.5


def test_a_turn_ends_with_a_part_that_ends_early() -> None:
    model = Model(stop_at=6)
    assert model.turn(4).ids.tolist() == [3, 4, 5, 6]
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("params", "divided"),
    [
        ({}, True),
        ({"stop": [], "repetition_penalty": 1.2, "stop_token_ids": [4]}, True),
        ({"stop": ["x"]}, False),
        ({"frequency_penalty": 0.5}, False),
    ],
)
def test_parameters_that_look_at_the_whole_turn_keep_it_whole(params: dict[str, Any], divided: bool) -> None:
    assert may_be_divided(params) == divided
    model = Model()
    model.turn(4, **params)
    assert len(model.asked) == (3 if divided else 1)
