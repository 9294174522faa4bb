"""Three tasks with short prompts, which a model of 135M parameters learns in some steps of GRPO, and their two roles.

A prompt is text with four solved examples. The completion ends at the line's end.
"""

from __future__ import annotations

import random

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator
from rolemesh.api.workload import stable_seed

WORDS = [
    "river", "stone", "lamp", "garden", "tower", "bridge", "forest", "market", "castle", "island", "harbor", "mill",
    "cave", "library", "temple", "bakery", "meadow", "station", "theater", "museum", "school", "church", "valley",
    "beach", "hotel", "square", "palace", "farm", "kitchen", "attic",
]  # fmt: skip
HELD_OUT = 5
"""Every fifth question, about, is for evaluation: a question's text decides."""
EXAMPLES = 4


def reverse(rng):
    """Two words in reverse order."""
    first, second = rng.sample(WORDS, 2)
    return f"{first} {second} ->", f"{second} {first}"


def larger(rng):
    """The larger of two numbers below 100."""
    first, second = rng.sample(range(10, 100), 2)
    return f"larger of {first} and {second}:", str(max(first, second))


def plus(rng):
    """The sum of two digits."""
    first, second = rng.randint(1, 9), rng.randint(10, 89)
    return f"{second} + {first} =", str(first + second)


TASKS = {"reverse": reverse, "larger": larger, "plus": plus}


def questions(task, split, start, count, seed):
    """Return `count` prompts and answers of a split, from number `start` on."""
    shown = [TASKS[task](random.Random(stable_seed("shown", task, number))) for number in range(EXAMPLES)]
    head = "".join(f"{question} {answer}\n" for question, answer in shown)
    found = []
    for number in range(start, start + count):
        rng = random.Random(stable_seed(seed, split, number))
        while True:
            question, answer = TASKS[task](rng)
            if (stable_seed(task, question) % HELD_OUT == 0) == (split == "eval"):
                break
        found.append((head + question, answer))
    return found


def reward(text, answer):
    """Return 1 for the answer, else the share of its words at their places, times 0.5."""
    said, right = text.split("\n")[0].split(), answer.split()
    if said == right:
        return 1.0
    return 0.5 * sum(a == b for a, b in zip(said, right, strict=False)) / len(right) if len(right) > 1 else 0.0


def advantages(rewards, samples):
    """Return rewards, standardized within each group of `samples` that follow each other."""
    values = np.asarray(rewards, np.float64).reshape(-1, samples)
    values = values - values.mean(1, keepdims=True)
    deviation = np.sqrt((values**2).mean(1, keepdims=True))
    return np.where(deviation > 1e-6, values / np.maximum(deviation, 1e-6), 0).astype(np.float32).reshape(-1)


class Questions:
    """Deals out prompts."""

    def __init__(self, ctx, task, prompts, held_out):
        self.ctx, self.task, self.prompts, self.count = ctx, task, prompts, held_out

    @operator(returns=Split())
    def next(self):
        return self._rows("train", self.ctx.step * self.prompts, self.prompts)

    @operator(returns=Split())
    def held_out(self):
        return self._rows("eval", 0, self.count)

    def _rows(self, split, start, count):
        found = questions(self.task, split, start, count, self.ctx.seed)
        index = np.arange(start, start + count)
        return Batch({"prompt": [p for p, _ in found], "answer": [a for _, a in found], "index": index})


class Verifier:
    """Scores completions."""

    def __init__(self, ctx, samples):
        self.ctx, self.samples = ctx, samples

    @operator(rows=Broadcast(), returns=Broadcast())
    def score(self, rows):
        found = [reward(text, answer) for text, answer in zip(rows["text"], rows["answer"], strict=True)]
        self.ctx.metric(reward=float(np.mean(found)))
        return rows | {"reward": np.array(found, np.float32), "advantage": advantages(found, self.samples)}

    @operator(rows=Broadcast())
    def evaluate(self, rows):
        found = [reward(text, answer) == 1 for text, answer in zip(rows["text"], rows["answer"], strict=True)]
        self.ctx.metric(eval_accuracy=float(np.mean(found)))
