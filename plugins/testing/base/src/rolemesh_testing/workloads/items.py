"""The items of a balanced input that one rank takes, and the results of its operator."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rolemesh.api.partition import Balanced
from rolemesh.api.workload import OperatorSpec, RankContext
from rolemesh_runtime.items import Items, apart
from rolemesh_testing.workloads.wire import Shared

__all__ = ["made_items", "shared_by"]


def shared_by(spec: OperatorSpec) -> Shared | None:
    """Return the balanced input of an operator; None if it has none."""
    found = [(name, how) for name, how in spec.inputs.items() if isinstance(how, Balanced)]
    return Shared(*found[0]) if found else None


async def made_items(
    ctx: RankContext, method: Callable[..., Any], arguments: Mapping[str, Any], shared: Shared
) -> list[tuple[Any, ...]]:
    """Call `method` with each item of this rank. Ranks differ by one item at most.

    For an ``async def`` operator as many calls run at once as `shared` allows. Raises the exception of `method`, and
    `PluginError` unless it returns as many rows as declared.
    """
    items, places = Items(ctx, shared.param, shared.how), asyncio.Semaphore(shared.how.concurrency)
    count = apart(arguments[shared.param], shared.how.rows)[1]

    async def made(index: int) -> tuple[Any, ...]:
        async with places:
            with items.one(arguments, index) as hand:
                hand.made = method(**hand.given)
                if inspect.iscoroutine(hand.made):
                    hand.made = await hand.made
            sent: tuple[Any, ...] = hand.sent
            return sent

    return list(await asyncio.gather(*map(made, ctx.mine(count))))
