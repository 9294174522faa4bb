"""Calls between roles in this process: the callee's method runs in the caller's call."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import CalledBy, CallError, CallTimeoutError, ServiceSpec
from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import RolemeshError, nearest
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh_inline.isolation import Isolated
from rolemesh_runtime.breaches import ServiceBreach, is_breach
from rolemesh_runtime.operator_failure import summarize, user_traceback
from rolemesh_runtime.served import Served, count_here

ENGINE = str(Path(__file__).parent) + "/"
"""The folder of this engine: tracebacks for users leave its frames out."""


class InlineCalls:
    """The `Caller` of one rank. No rank dies here, so sessions last, and no call is repeated."""

    def __init__(
        self,
        graph: LogicalGraph,
        ctx: RankContext,
        workloads: Mapping[RankRef, Workload],
        contexts: Mapping[RankRef, RankContext],
        sizes: Mapping[str, int],
        loop: asyncio.AbstractEventLoop,
        become: Callable[[str], None],
    ) -> None:
        self._graph = graph
        self._become = become
        self._ctx = ctx
        self._workloads = workloads
        self._sizes = sizes
        self._loop = loop
        self._contexts = contexts
        self._places: dict[tuple[RankRef, str], asyncio.Semaphore] = {}
        self._next = 0
        self._running = Counter[RankRef]()
        self._since: dict[RankRef, float] = {}
        self.served_s: dict[RankRef, float] = {}
        """The seconds in which each rank ran at least one call of this rank. The engine takes them."""
        self.op: OpCall | None = None

    async def call(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call`."""
        spec = self._spec(role, method)
        rank = self._rank(role, session)
        limit = timeout if timeout is not None else spec.timeout_s
        where = self._where
        by = CalledBy(self._ctx.role, self._ctx.rank, self._ctx.step, session)
        given = Isolated(args).value()
        ref = RankRef(role, rank)
        name = f"{ref}.{method}"
        place = self._places.setdefault((ref, method), asyncio.Semaphore(spec.concurrency))
        late = asyncio.timeout(limit)
        served = Served()
        try:
            async with late, place:
                with self._contexts[ref].serving(by), served.inside(), self._timed(ref):
                    found = getattr(self._workloads[ref], method)(*given)
                    return Isolated(await found if inspect.isawaitable(found) else found).value()
        except Exception as error:
            if late.expired():
                what = f"{name} has not answered within {limit:g} s"
                remedy = "raise its timeout, or see why its rank is slow"
                raise CallTimeoutError(what, where=where, remedy=remedy) from None
            if is_breach(error):
                what = f"{name} has broken its contract: {error.what}"
                raise ServiceBreach(what, kind="misbehaved", where=where, remedy=error.remedy) from error
            text = f"{summarize(error)}\n{user_traceback(error, ENGINE)}".rstrip()
            raise CallError(f"{name} has raised {text}", where=where) from error
        finally:
            count_here(self._ctx, f"{role}.{method}", served.take())

    @contextmanager
    def _timed(self, ref: RankRef) -> Iterator[None]:
        """Count the time inside, once for calls that run at the same time, and set the callee's variables."""
        if not self._running[ref]:
            self._since[ref] = perf_counter()
        self._running[ref] += 1
        self._become(ref.role)
        try:
            yield
        finally:
            self._become(self._ctx.role)
            self._running[ref] -= 1
            if not self._running[ref]:
                self.served_s[ref] = self.served_s.get(ref, 0.0) + perf_counter() - self._since[ref]

    def call_and_wait(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call_and_wait`."""
        if self._loop.is_running():
            raise self._wrong("ctx.call_and_wait stops an `async def` operator", "write `await ctx.call(...)`")
        return self._loop.run_until_complete(self.call(role, method, args, session, timeout))

    def session(self, role: str) -> str:
        """See `RankContext.session`: a new one has a number of this process."""
        self._spec(role, "")
        self._next += 1
        key = f"{self._ctx.role}-{self._ctx.rank}-{self._next}"
        return f"{role}/{crc32(key.encode()) % self._sizes[role]}#0/{key}"

    def _rank(self, role: str, session: str) -> int:
        if not session:
            self._next += 1
            return self._next % self._sizes[role]
        named, _, rest = session.partition("/")
        if named != role or not rest.partition("#")[0].isdigit():
            raise self._wrong(f"{session!r} is no session with role {role!r}", f"begin one: ctx.session({role!r})")
        return int(rest.partition("#")[0])

    def _spec(self, role: str, method: str) -> ServiceSpec:
        if self.op is None:
            raise self._wrong(f"{role} is called outside an operator", "call it in an operator, which has a step")
        if role not in self.op.calls:
            raise self._wrong(f"{self.op.label} may not call role {role!r}", f"say so in the flow: calls=[job.{role}]")
        services = self._graph.services[role]
        if method and method not in services:
            raise self._wrong(f"role {role!r} has no service {method!r}", nearest(method, services))
        return services[method or next(iter(services))]

    @property
    def _where(self) -> str:
        return f"{RankRef(self._ctx.role, self._ctx.rank).in_words}, step {self._ctx.step}"

    def _wrong(self, what: str, remedy: str) -> RolemeshError:
        return RolemeshError(what, where=self._where, remedy=remedy)
