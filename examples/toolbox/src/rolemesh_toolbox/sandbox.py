"""The workload `arithmetic`: a role with services only, for agents."""

from __future__ import annotations

import ast
import operator as python
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field
from rolemesh import RankContext, Workload, service

__all__ = ["Sandbox"]

OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: python.add,
    ast.Sub: python.sub,
    ast.Mult: python.mul,
    ast.USub: python.neg,
}


class SandboxOptions(BaseModel, extra="forbid"):
    """Options of the `arithmetic` workload."""

    letters: int = Field(default=200, ge=1, description="The longest text that is evaluated.")


class Sandbox(Workload):
    """Evaluates sums and products of whole numbers for other roles. It has no operators and no state."""

    Options = SandboxOptions
    api_version = 1
    deterministic = True

    def setup(self, ctx: RankContext[SandboxOptions]) -> None:
        """Store the limit."""
        self.letters = ctx.options.letters

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
