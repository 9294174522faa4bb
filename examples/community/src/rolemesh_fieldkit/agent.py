"""The workloads `guesser`, which solves tasks in several turns with a tool, and `arithmetic`, which is that tool."""

from __future__ import annotations

import ast
import operator as python
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from rolemesh import Balanced, Batch, RankContext, Split, Workload, operator, service

__all__ = ["Agent", "Sandbox"]

OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: python.add,
    ast.Sub: python.sub,
    ast.Mult: python.mul,
    ast.USub: python.neg,
}


class AgentOptions(BaseModel, extra="forbid"):
    """Options of the `guesser` workload."""

    tool: str = Field(default="sandbox", description="The role that has the service `evaluate`.")
    turns: int = Field(default=4, ge=1, description="The most calls of the tool for one task.")


class Agent(Workload):
    """Each task is a conversation with the tool: the agent guesses an addend until the sum is right.

    Ranks take tasks on demand, up to eight at once. A task's numbers depend on its item and step only. It therefore
    does not matter which rank solves it, or how often.
    """

    Options = AgentOptions
    options: AgentOptions
    api_version = 1
    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        """Do nothing: the agent keeps no state between steps."""
        self.ctx = ctx

    @operator(tasks=Balanced(rows=1, concurrency=8), returns=Split())
    async def solve(self, tasks: Batch) -> Batch:
        """Solve `tasks`, which has the columns `start` and `goal` (whole numbers).

        The answer has `turns`, and `solved` (0 or 1).
        """
        options, start, goal = self.options, int(tasks["start"][0]), int(tasks["goal"][0])
        rng = self.ctx.rng(self.ctx.step, self.ctx.item)
        guess = int(rng.integers(-9, 10))
        turns, found = 0, None
        while found != goal and turns < options.turns:
            turns += 1
            found = await self.ctx.call(options.tool, "evaluate", f"{start} + {guess}")
            guess += goal - found if found is not None else 1
        self.ctx.metric(solved=float(found == goal), turns=turns)
        return Batch({"turns": np.array([turns]), "solved": np.array([int(found == goal)])})


class SandboxOptions(BaseModel, extra="forbid"):
    """Options of the `arithmetic` workload."""

    letters: int = Field(default=200, ge=1, description="The longest text that is evaluated.")


class Sandbox(Workload):
    """Evaluates sums and products of whole numbers for other roles. It has no operators and no state."""

    Options = SandboxOptions
    options: SandboxOptions
    api_version = 1
    deterministic = True

    def setup(self, ctx: RankContext) -> None:
        """Store the limit."""
        self.letters = self.options.letters

    @service(concurrency=16, timeout_s=10.0)
    async def evaluate(self, text: str) -> int | None:
        """Return the value of an arithmetic expression; None for everything else. The same call has the same answer."""
        if len(text) > self.letters:
            return None
        try:
            return _value(ast.parse(text, mode="eval").body)
        except (SyntaxError, TypeError, RecursionError):
            return None


def _value(node: ast.AST) -> int:
    """Evaluate a node. Raises `TypeError` for anything but whole numbers, sums, differences and products."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left, operation, right) if type(operation) in OPERATIONS:
            return int(OPERATIONS[type(operation)](_value(left), _value(right)))
        case ast.UnaryOp(operation, operand) if type(operation) in OPERATIONS:
            return int(OPERATIONS[type(operation)](_value(operand)))
    raise TypeError(type(node).__name__)
