"""The roles of the chaos job. A lost, repeated or reordered value changes the trainer's final weights."""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolemesh import Batch, Ragged, RankContext

PER_STEP = 4
WORDS = 200


class Shards:
    """Hands out numbered shards in a shuffled order: its state is the generator's, and which ones are out."""

    def __init__(self, ctx: RankContext) -> None:
        self.rng = ctx.rng("shards")
        self.left = list(range(PER_STEP * 24))

    def next(self, ctx: RankContext) -> Batch:
        """`shard` (int64) and `input_ids` (ragged int32) of the step's shards; every shard once in 24 steps."""
        shards = [self.left.pop(int(self.rng.integers(len(self.left)))) for _ in range(PER_STEP)]
        ctx.record(shards=shards)
        rows = [np.random.default_rng(shard).integers(2, WORDS, 8 + shard % 5) for shard in shards]
        return Batch({"shard": np.array(shards), "input_ids": Ragged.from_rows(rows, np.int32)})

    def snapshot(self) -> dict[str, Any]:
        return {"left": np.array(self.left, np.int64), "rng": json.dumps(self.rng.bit_generator.state)}

    def restore(self, state: dict[str, Any]) -> None:
        self.left = np.asarray(state["left"]).tolist()
        self.rng.bit_generator.state = json.loads(state["rng"])


class Rollout:
    """Without state: what it writes depends on the bits of the weights that it was given last."""

    def __init__(self) -> None:
        self.seen = 1

    def generate(self, prompts: Batch) -> Batch:
        """Each row with three words more."""
        time.sleep(0.02)
        rows = [np.append(row, self._words(int(row.sum()))) for row in prompts["input_ids"]]
        return prompts | {"input_ids": Ragged.from_rows(rows, np.int32)}

    def load(self, weights: Mapping[str, Any]) -> None:
        """All parameters by name."""
        self.seen = zlib.crc32(b"".join(np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights)))

    def _words(self, number: int) -> np.ndarray:
        return np.random.default_rng([self.seen, number]).integers(2, WORDS, 3)


class MortalRollout(Rollout):
    """Its second rank is slow at step 5, and dies there the first time."""

    def generate(self, prompts: Batch, ctx: RankContext) -> Batch:  # type: ignore[override]
        if ctx.rank == 1 and ctx.step == 5:
            time.sleep(1.0)
            if ctx.generation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().generate(prompts)


class Reward:
    """Keeps the list of shards that it has scored: its state shows whether one was lost or came twice."""

    def __init__(self) -> None:
        self.scored: list[int] = []

    def score(self, answers: Batch) -> Batch:
        """`loss_mask` by row (ragged int8): only the words that are even count."""
        self.scored += answers["shard"].tolist()
        masks = [(np.asarray(row) % 2 == 0).astype(np.int8) for row in answers["input_ids"]]
        return answers | {"loss_mask": Ragged.from_rows(masks, np.int8)}

    def snapshot(self) -> dict[str, Any]:
        return {"scored": np.array(self.scored, np.int64)}

    def restore(self, state: dict[str, Any]) -> None:
        self.scored = np.asarray(state["scored"]).tolist()
