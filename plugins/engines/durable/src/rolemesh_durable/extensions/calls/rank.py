"""Calls between roles: a rank's operators call services of other ranks, and the rank answers calls while it waits."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import OpCall
from rolemesh_dataplane.transports import TransportError
from rolemesh_durable.extensions.calls.calling import Calling
from rolemesh_durable.extensions.calls.frames import opened, read_answer, read_request
from rolemesh_durable.extensions.calls.serving import Serving
from rolemesh_durable.extensions.calls.states import edges_of_calls
from rolemesh_durable.malformed import UNREADABLE
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.protocol.rank.page import OP
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_durable.rank.frames import CREDIT, CREDITS
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.services import Rank

__all__ = ["RankCalls", "part_of"]

CHANNEL = "calls"


def part_of(rank: Rank) -> RankCalls | None:
    """Return the part of a rank whose role calls, is called, or has coroutines as operators; None for any other.

    Raise `RolemeshError` for a called role that takes turns on its devices.
    """
    role, graph = rank.ctx.role, rank.job.graph
    serves = any(pair.callee == role for pair in edges_of_calls(graph))
    if serves and rank.ctx.turns:
        remedy = f"give role {role} devices of its own"
        raise RolemeshError(f"role {role} is called, but takes turns on its devices", remedy=remedy)
    calls = any(pair.caller == role for pair in edges_of_calls(graph))
    methods = (getattr(rank.workload, op.operator) for op in graph.of_role(role))
    if not calls and not serves and not any(map(inspect.iscoroutinefunction, methods)):
        return None
    return RankCalls(rank, calls=calls, serves=serves)


class RankCalls(RankExtension):
    """The calls of one rank.

    It answers others between operators, while it waits for inputs and credits, and while a coroutine of its own waits.
    It answers nobody while a `def` operator runs.
    """

    def __init__(self, rank: Rank, *, calls: bool, serves: bool) -> None:
        self._rank, self._tasks = rank, rank.tasks
        self._early: list[tuple[str, int, int, bytes]] | None = []
        """The messages that came before this rank had its ends; None afterwards."""
        send = rank.open_channel(CHANNEL, self._receive)
        self._calling = Calling(rank, send) if calls else None
        self._serving = serving = Serving(rank, send) if serves else None
        self._asks = {pair.asks for pair in edges_of_calls(rank.job.graph) if pair.callee == rank.ctx.role}
        self._answers = {pair.answers for pair in edges_of_calls(rank.job.graph) if pair.caller == rank.ctx.role}
        self._only_called = not rank.job.graph.of_role(rank.ctx.role)
        self._open = self._running = self._begun = False
        if serving is not None:
            port_of(rank.ctx).attend_callers(partial(self._wait_for_callers, serving))
        early, self._early = self._early, None
        for message in early:
            self._receive(*message)

    def _receive(self, role: str, rank: int, generation: int, body: bytes) -> None:
        """Take a message of the channel. Raises `struct.error` for one that no rank sends."""
        if self._early is not None:
            self._early.append((role, rank, generation, body))
            return
        try:
            if body[0] == CREDIT and self._serving is not None:
                self._serving.has_finished(RankRef(role, rank), generation, CREDITS.unpack(body)[-1])
                return
            edge, step, header, buffers = opened(body)
            if edge in self._asks and self._serving is not None:
                self._serving.asked(RankRef(role, rank), generation, step, read_request(header), buffers)
            elif edge in self._answers and self._calling is not None:
                self._calling.arrived(rank, generation, read_answer(header), buffers)
            else:
                raise ValueError(f"a message on edge {edge}")
        except (TransportError, *UNREADABLE) as error:
            raise struct.error(str(error)) from error

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Run calling operators, coroutines, and all operators of a called role by `_run`."""
        if op.calls or self._serving is not None or inspect.iscoroutinefunction(method):
            return partial(self._run, op, method)
        return method

    def remember(self) -> None:
        """Read from the log which ranks former lives called, and what those answered."""
        if self._calling is not None and self._rank.log is not None:
            self._calling.remember(self._rank.log)

    def opened(self, resume: int) -> None:
        """Answer from here on."""
        if self._calling is not None:
            self._calling.finished(resume)
        self.rewired()
        self._open = self._begun = True

    def rewired(self) -> None:
        """Meet the new lives of callers and callees."""
        for end in (self._calling, self._serving):
            if end is not None:
                end.rewire()

    def relaid(self, sizes: Mapping[str, int]) -> None:
        """Forget the ranks of these roles."""
        for end in (self._calling, self._serving):
            if end is not None:
                end.resized(sizes)

    def advanced(self, advance: Watermarks) -> None:
        """Ask other ranks instead of dead ones, and forget the answers to committed steps."""
        if self._calling is not None:
            self._calling.advanced(advance)
        if self._serving is not None:
            self._serving.committed(advance.committed)

    def step_done(self, step: int, held: bool) -> None:
        """Tell the callees. A rank that is only called, or `held`, waits here until its callers have finished the step.

        So its snapshot contains the effects of their calls. Raises `Stopping`.
        """
        if self._calling is not None:
            self._calling.finished(step)
        if self._serving is not None and (self._only_called or held):
            self._serving.follow(step)
        if self._only_called:
            self._rank.meter.collect(self._rank.ctx.role)  # what it reports outside of calls

    def idle(self) -> bool:
        """Run the calls that have come."""
        if self._serving is not None and self._open:
            with self._tasks.outside():
                self._serving.serve()
        return False

    def wait(self, wait_ms: int) -> bool:
        """Let services that are coroutines go on, if there are any."""
        if not self._open or self._running or not self._tasks.busy or self._tasks.here():
            return False
        if self._serving is None:
            self._tasks.loop.wait(wait_ms)
        else:
            self._serving.wait(wait_ms)
        return True

    def close(self) -> None:
        """Answer nobody any more."""
        self._open = False

    def _wait_for_callers(self, serving: Serving) -> None:
        """See `RankContext.wait_for_callers`. The engine repeats calls of operators before it answers."""
        if not self._begun:
            return
        page = self._rank.status_page.fields
        op, self._open = page[OP], True
        try:
            serving.follow(self._rank.ctx.step, in_operator=True)
        finally:
            self._open, page[OP] = False, op

    def _run(self, op: OpCall, method: Callable[..., Any], /, **arguments: Any) -> Any:
        """Run an operator. A coroutine runs to its end, and the rank answers calls meanwhile."""
        line = CallSequence(op, self._rank.ctx.step)
        self._tasks.begins(line)
        self._open = False
        try:
            result = method(**arguments)
            if inspect.iscoroutine(result):
                self._open = self._running = True
                result = self._tasks.loop.run(result, line)
            return result
        finally:
            self._open, self._running = True, False
