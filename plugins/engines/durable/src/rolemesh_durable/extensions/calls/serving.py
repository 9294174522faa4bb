"""The called end: a rank runs the calls of its services whenever it waits, and answers them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import CalledBy
from rolemesh_dataplane.codec import Buffer, decode, encode
from rolemesh_durable.extensions.calls.ends import CalleeEnd
from rolemesh_durable.extensions.calls.frames import (
    ANSWER,
    BREACH,
    ERROR,
    GIVE_UP,
    LOST,
    UNCERTAIN,
    Answer,
    Request,
    frame_of,
)
from rolemesh_durable.extensions.calls.phases import CALLING, FOLLOWING, SERVING
from rolemesh_durable.extensions.calls.states import Known, edges_of_calls
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.rank.channel import Send
from rolemesh_durable.rank.services import Rank
from rolemesh_runtime.breaches import is_breach
from rolemesh_runtime.operator_failure import summarize, user_traceback
from rolemesh_runtime.served import Served, count_here

__all__ = ["Serving"]

ENGINE: Final = str(Path(__file__).parents[2]) + "/"
"""Folder whose frames do not concern the reader of a traceback."""
LOOK_NS: Final = 5_000_000
"""Nanoseconds after which a rank with much to answer looks into its inbox."""

_Asked = tuple[Request, Sequence[Buffer]]
_Known = Known[_Asked, bytes]


class Serving(CalleeEnd[_Asked, bytes]):
    """The services of one rank."""

    def __init__(self, rank: Rank, send: Send) -> None:
        """`send` sends on the channel of calls."""
        job, role = rank.job, rank.ctx.role
        ends = [pair for pair in edges_of_calls(job.graph) if pair.callee == role]
        self._ctx, self._meter, self._waits = rank.ctx, rank.meter, rank.ports.waits
        self._mail, self._fields, self._tasks, self._channel = rank.ports.mail, rank.ports.fields, rank.tasks, send
        services = job.graph.services[role]
        self._methods = {name: getattr(rank.workload, name) for name in services}
        self._async = frozenset(name for name, method in self._methods.items() if inspect.iscoroutinefunction(method))
        self._edges = {pair.caller: pair for pair in ends}
        callers = {each.caller: job.world_sizes[each.caller] for each in ends}
        super().__init__(callers, services, self._mail.site.generation, job.snapshots, job.retention_bytes)
        self._running: dict[_Known, asyncio.Task[None]] = {}
        self._reports: dict[_Known, Served] = {}
        """The reports of the calls that run, so far."""
        self._looked = self._since = 0
        """The time of the last look, and of the begin of the calls that go on (0: none does)."""
        self._in_operator = False
        """True if an operator waits for the callers: its time includes theirs."""
        if self._async:
            rank.tasks.loop.on_block(self._blocks, inside=False)

    # ---------------------------------------------------------------------------------- what `CalleeEnd` decides

    def _life(self, rank: RankRef) -> int:
        return self._mail.generation(*rank)

    def _wanted(self, request: _Asked) -> int:
        return request[0].life

    def _refuse(self, known: _Known) -> None:
        self._done(known, LOST, b"", ())

    def _cancel(self, known: _Known) -> None:
        """Cancel a call, if it is a coroutine that runs."""
        if (task := self._running.get(known)) is not None:
            task.cancel()

    def _send(self, known: _Known) -> None:
        assert known.answer is not None
        self._channel(*known.caller, known.answer)

    # ------------------------------------------------------------------------------------------------ running calls

    def follow(self, step: int, *, in_operator: bool = False) -> None:
        """Answer until all callers have finished `step`. Raises `Stopping`."""
        if self._state.finished < step:
            self._fields[status.OP], self._in_operator = -1, in_operator
            self._waits.until(lambda: self._state.finished >= step, FOLLOWING)
            self._in_operator = False

    def _begins(self) -> None:
        """A call goes on: the rank serves, whatever it waits for."""
        fields, self._since = self._fields, monotonic_ns()
        if fields[status.PHASE] != SERVING:
            self._meter.around = fields[status.PHASE], fields[status.EDGE], fields[status.SINCE_NS]
            self._waits.at(SERVING, since=self._since)

    def _pauses(self, *, shows: bool = False) -> None:
        """No call goes on. Count the time as computing, and no longer as a wait. `shows`: the rank shows its wait.

        An operator's time includes that of the calls that the rank answers meanwhile.
        """
        if not self._since:
            return
        fields, meter, now = self._fields, self._meter, monotonic_ns()
        instead, ns = meter.around[0], now - self._since
        meter.span(SERVING, -1, self._since, now)
        self._since = 0
        within = instead in (status.COMPUTING, CALLING)
        if shows or within or not self._running:
            self._waits.at(*meter.around)
        if within:
            return
        self._waits.uncounted(ns)
        if not self._in_operator:
            meter.computing += ns
            meter.served += ns
            fields[status.COMPUTED_NS] = meter.busy + meter.served

    def wait(self, wait_ms: int) -> None:
        """Let calls that are coroutines go on. The rank serves as long as one is open."""
        if self._running:
            self._begins()
        self._tasks.loop.wait(wait_ms)
        self._pauses()

    def _blocks(self, begins: bool) -> None:
        """All coroutines wait, or one goes on. If all calls are of later steps, they wait for the rank itself."""
        if begins and self._meter.around[0] != FOLLOWING:
            if all(known.step > self._ctx.step for known in self._running):
                self._pauses(shows=True)
        elif not begins and self._running and not self._since:
            self._begins()

    def serve(self) -> None:
        """Run the waiting calls. Raises `Stopping`."""
        try:
            while (known := self._next()) is not None:
                if not self._since:
                    self._begins()
                self._run(known)
                if (now := monotonic_ns()) - self._looked > LOOK_NS:
                    self._looked = now
                    self._waits.look()
        finally:
            self._pauses()

    def _run(self, known: _Known) -> None:
        assert known.request is not None
        words, buffers = known.request
        self._fields[status.CALLS] += 1
        served = self._reports[known] = Served()
        try:
            arguments = decode(words.arguments, buffers)
            with self._ctx.serving(CalledBy(*known.caller, known.step, words.session)), served.inside():
                result = self._methods[known.method](*arguments)
                if known.method in self._async:
                    task = self._running[known] = self._tasks.loop.spawn(self._finish(known, result))
                    task.add_done_callback(partial(self._ended, known, result))
                else:
                    self._answer(known, result)
        except Exception as error:
            self._raised(known, error)

    async def _finish(self, known: _Known, result: Coroutine[Any, Any, Any]) -> None:
        try:
            self._answer(known, await result)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._raised(known, error)
        except Exception as error:
            self._raised(known, error)

    def _ended(self, known: _Known, result: Coroutine[Any, Any, Any], task: asyncio.Task[None]) -> None:
        """Note that the task of a call has ended. A call that is cancelled has no other answer."""
        del self._running[known]
        if not self._running:
            self._pauses()
        if task.cancelled() and known.given_up:
            result.close()
            self._done(known, UNCERTAIN, b"", ())

    def _answer(self, known: _Known, result: Any) -> None:
        self._done(known, ANSWER, *encode(result))

    def _raised(self, known: _Known, error: BaseException) -> None:
        if is_breach(error):
            self._done(known, BREACH, *encode((error.what, error.remedy)))
            return
        text = user_traceback(error, ENGINE) or summarize(error)
        self._done(known, ERROR, *encode(f"{summarize(error)}\n{text}"))

    def _done(self, known: _Known, kind: int, header: bytes, buffers: Sequence[Buffer]) -> None:
        site, pair = self._mail.site, self._edges[known.caller[0]]
        served = self._reports.pop(known, None)
        reports = served.take() if served is not None else ()
        if known.given_up:  # nobody receives the answer
            count_here(self._ctx, f"{site.role}.{known.method}", reports)
            reports = ()
        words = Answer(known.key, kind, header, reports)
        frame = frame_of(words, buffers, pair.answers, site.rank, site.generation, known.step)
        self._ends(known, frame, len(frame))

    def asked(self, caller: RankRef, generation: int, step: int, words: Request, buffers: Sequence[Buffer]) -> None:
        """Take a call. Raises `ValueError` for one that no rank makes."""
        if words.method == GIVE_UP:
            self._given_up(caller, generation, words.key)
            return
        if not self._state.knows(caller, words.method) or words.until < step:
            raise ValueError(f"a call of {words.method!r} by {caller}, whom nobody knows")
        self._take(caller, generation, words.key, step, words.until, words.method, (words, buffers))
