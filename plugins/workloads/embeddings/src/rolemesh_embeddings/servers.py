"""Calls of an operator to all ranks of a role `embeddings`: lookups and updates that wait for no step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.api.context import RankContext
from rolemesh.api.service import SessionLostError
from rolemesh_embeddings.cache import Cache
from rolemesh_embeddings.hashing import BUCKETS, Keys, bucket_of, mix, ranks_of_buckets, unique
from rolemesh_embeddings.table import looked_up

__all__ = ["Servers"]

T = TypeVar("T")
REMEMBERED = 4096
"""Number of applied updates of each rank that a caller remembers, to count those that a dead rank has lost."""
AGAIN_S = 0.05
"""Seconds between attempts to find a rank that restarts."""
IN_STEP = 1_000_000
"""Maximum number of updates of a caller in a step."""


class Servers:
    """The ranks of `role`, for an ``async def`` operator whose flow says ``calls=[job.ROLE]``.

    If a rank dies, the call waits for its next life. The metric
    `updates_lost` counts the updates that it lost, unless the caller has died, too.

    With `cache_rows` the caller keeps that many rows of each table, and looks up again only those that have changed and
    are more than `max_age` updates of their server old. The metric `cached` is the share of keys that it had.
    """

    def __init__(self, ctx: RankContext, role: str, *, cache_rows: int = 0, max_age: int = 0) -> None:
        self._ctx, self._role = ctx, role
        self._cache_rows, self._max_age = cache_rows, max_age
        self._caches: dict[str, Cache] = {}
        self._sessions: dict[int, str] = {}
        self._connecting = asyncio.Lock()
        self._rank_of = np.zeros(BUCKETS, np.int64)
        self._applied: dict[int, deque[int]] = {}
        self._step, self._count = -1, 0

    async def fetch(self, keys: Mapping[str, Any]) -> Batch:
        """Return the rows of `keys`, which are arrays by table, in the form of the operator `lookup`."""
        given = {name: unique(each) for name, each in keys.items()}
        buckets = {name: bucket_of(mix(each)) for name, each in given.items()}

        async def ask(rank: int, session: str) -> Any:
            mine = {name: each[self._rank_of[buckets[name]] == rank] for name, each in given.items()}
            if self._cache_rows:
                return await self._ask(mine, rank, session)
            return await self._ctx.call(self._role, "fetch", mine, session=session)

        answers = await self._all(ask)
        return looked_up([each.pop("updates") for each in answers], answers)

    async def _ask(self, mine: dict[str, Keys], rank: int, session: str) -> Any:
        """Return a rank's answer as `fetch` gives it, with rows that the caller has had."""
        missing, held = dict(mine), dict[str, list[Any]]()
        had: dict[str, NDArray[np.float32]] = {}
        for name, keys in mine.items():
            here, updates, values = self._caches.setdefault(name, Cache(self._cache_rows)).find(keys)
            missing[name], held[name], had[name] = keys[~here], [keys[here], updates], values
        answer = await self._ctx.call(self._role, "fetch", missing, held, self._max_age, session=session)
        now = answer["updates"]
        for name, (known, updates) in held.items():
            keys, values = answer[name]
            same = ~_among(known, keys)
            if len(mine[name]):
                self._ctx.metric(cached=same.sum() / len(mine[name]))
            if self._sessions.get(rank) == session:  # not the answer of a life that has ended
                good = same & (updates < now - self._max_age)
                self._caches[name].put(known[good], had[name].take(np.flatnonzero(good), 0), now)
                self._caches[name].put(keys, values, now)
            if same.any():
                kept = had[name].take(np.flatnonzero(same), 0)
                answer[name] = [np.concatenate([keys, known[same]]), np.concatenate([values, kept])]
        return answer

    async def ahead(self, parts: Sequence[Mapping[str, Any]]) -> AsyncIterator[Batch]:
        """Yield the rows of each part, and look up those of the next part meanwhile."""
        task = asyncio.ensure_future(self.fetch(parts[0])) if parts else None
        for number in range(len(parts)):
            assert task is not None
            rows = await task
            if number + 1 < len(parts):
                task = asyncio.ensure_future(self.fetch(parts[number + 1]))
                await asyncio.sleep(0)
            yield rows

    async def push(self, grads: Batch) -> None:
        """Apply gradients, in the form of the operator `update`. A step that is repeated applies none twice."""
        if self._ctx.step != self._step:
            self._step, self._count = self._ctx.step, 0
        self._count += 1
        number = self._step * IN_STEP + self._count
        names = [name.removesuffix("_keys") for name in grads if name.endswith("_keys") and len(grads[name].values)]
        given = {name: (grads[f"{name}_keys"].values, grads[f"{name}_grads"].values) for name in names}
        buckets = {name: bucket_of(mix(keys)) for name, (keys, _) in given.items()}

        async def send(rank: int, session: str) -> None:
            at = {name: np.flatnonzero(self._rank_of[each] == rank) for name, each in buckets.items()}
            mine = {name: [each.take(at[name], 0) for each in given[name]] for name in names}
            await self._ctx.call(self._role, "push", number, mine, session=session)
            done = self._applied.setdefault(rank, deque(maxlen=REMEMBERED))
            if not done or done[-1] < number:
                done.append(number)

        await self._all(send)

    async def _all(self, ask: Callable[[int, str], Awaitable[T]]) -> list[T]:
        """Return the answers of all ranks. Ask all again if a session is lost."""
        while True:
            async with self._connecting:  # lookups ahead and updates lose their sessions at the same time
                if not self._sessions:
                    self._sessions = await self._connect()
            sessions = self._sessions
            asked = (ask(rank, session) for rank, session in sorted(sessions.items()))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            wrong = [each for each in answers if isinstance(each, BaseException)]
            for each in wrong:
                if not isinstance(each, SessionLostError):
                    raise each
            if not wrong:
                return answers  # type: ignore[return-value]
            if self._sessions is sessions:
                self._sessions = {}

    async def _connect(self) -> dict[int, str]:
        """Begin sessions until there is one with each rank, and return them by rank."""
        for cache in self._caches.values():  # a rank that was restored has gone back, and rows may have moved
            cache.clear()
        found: dict[int, str] = {}
        while True:
            session = self._ctx.session(self._role)
            try:
                rank, ranks, last = await self._ctx.call(self._role, "applied", session=session)
            except SessionLostError:
                continue
            if rank in found:
                await asyncio.sleep(AGAIN_S)
                continue
            found[rank] = session
            done = self._applied.get(rank, ())
            lost = [number for number in done if number > last]
            if lost:
                self._ctx.count(updates_lost=len(lost))
                self._applied[rank] = deque((number for number in done if number <= last), maxlen=REMEMBERED)
            if len(found) >= ranks:  # more while the role becomes smaller: those sessions are lost at once
                self._rank_of = ranks_of_buckets(ranks)
                return found


def _among(ordered: Keys, keys: Keys) -> NDArray[np.bool_]:
    """Return which of different, ascending keys are among `keys`."""
    found = np.zeros(len(ordered), np.bool_)
    if len(ordered):
        at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        found[at[ordered[at] == keys]] = True
    return found
