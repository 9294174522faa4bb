"""What a rank has beside its edges: operators that are coroutines, calls to other roles, and calls of others."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import RolemeshError
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity
from rolemesh_durable.checkpoint.send_log import SendLog
from rolemesh_durable.protocol.calls import hold_of_call, ways
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.rank.calling import Calling
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import EventLoop, Line
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.serving import Serving
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["Calls"]


class Calls:
    """Of one rank. It answers others while it waits: between operators, for inputs and credits, and where a coroutine
    of its own waits; not inside a `def` operator."""

    def __init__(
        self,
        graph: LogicalGraph,
        activity: Activity,
        world_sizes: Mapping[str, int],
        workload: Workload,
        ctx: RankContext[Any],
        *,
        endpoint: Endpoint,
        status_page: StatusPage,
        meter: Meter,
        snapshots: SnapshotPlan | None = None,
        unrepeated: Collection[str] = (),
        max_bytes: int = 1 << 30,
        log: SendLog | None = None,
    ) -> None:
        """`max_bytes` of answers are kept for callers that may be started again, and more only where they must.

        Raises `RolemeshError` for a role that is called and takes turns with others on its devices.
        """
        role = ctx.role
        self._endpoint = endpoint
        self._loop: EventLoop | None = None
        self._calling: Calling | None = None
        self._serving: Serving | None = None
        self._open = self._running = False
        own = graph.of_role(role)
        self._leads = not own
        known = ways(graph)
        if to := {way.callee: way for way in known if way.caller == role}:
            holds = {op.id: hold_of_call(op, activity, unrepeated) for op in own}
            self._calling = port_of(ctx).caller = Calling(
                graph, world_sizes, to, holds,
                endpoint=endpoint, status_page=status_page, meter=meter, loop=self.loop, log=log,
            )  # fmt: skip
        if here := [way for way in known if way.callee == role]:
            if ctx.turns:
                remedy = f"give role {role} devices of its own"
                raise RolemeshError(f"role {role} is called, but takes turns on its devices", remedy=remedy)
            self._serving = Serving(
                ctx, graph, world_sizes, here, snapshots or SnapshotPlan(),
                endpoint=endpoint, workload=workload, status_page=status_page, loop=self.loop, max_bytes=max_bytes,
            )  # fmt: skip
        endpoint.on_wait = self._wait

    def apart(self, op: OpCall, method: Any) -> bool:
        """Whether an operator is to be run by `run`."""
        return bool(op.calls) or self._serving is not None or inspect.iscoroutinefunction(method)

    def remember(self, log: SendLog) -> None:
        """Former lives may have written down whom they asked, and what came back."""
        if self._calling is not None:
            self._calling.remember(log)

    def open(self, resume: int) -> None:
        """The rank is restored to step `resume`, and knows its peers; from here on it answers."""
        if self._calling is not None:
            self._calling.finished(resume)
        self.rewire()
        self._open = True

    def rewire(self) -> None:
        """Peers have other addresses."""
        for end in (self._calling, self._serving):
            if end is not None:
                end.rewire()

    def resized(self, sizes: Mapping[str, int]) -> None:
        """Roles have other ranks now, of which nobody is up yet."""
        for end in (self._calling, self._serving):
            if end is not None:
                end.resized(sizes)

    def advanced(self, advance: Watermarks) -> None:
        """How far everything is."""
        if self._calling is not None:
            self._calling.advanced(advance)
        if self._serving is not None:
            self._serving.committed(advance.committed)

    @property
    def loop(self) -> EventLoop:
        """Where coroutines run; made for the first one, as it takes descriptors."""
        if self._loop is None:
            self._loop = EventLoop(self._endpoint)
        return self._loop

    def each_item(self, op: OpCall, step: int, items: Iterator[int]) -> Iterator[int]:
        """The `items` of which a `def` operator does one after the other: what it calls is numbered for each alone."""
        for item in items:
            if self._calling is not None:
                self._calling.begins(Line(op, step, f".{item}"))
            yield item

    def run(self, op: OpCall, step: int, method: Any, arguments: Mapping[str, Any]) -> Any:
        """Run an operator. A coroutine is run to its end, with calls of others in between."""
        line = Line(op, step)
        if self._calling is not None:
            self._calling.begins(line)
        self._open = False
        try:
            result = method(**arguments)
            if inspect.iscoroutine(result):
                self._open = self._running = True
                result = self.loop.run(result, line)
            return result
        finally:
            self._open, self._running = True, False

    def finished(self, step: int, held: bool) -> None:
        """All operators of `step` are through. Who is only called, or `held` after this step, waits until its callers
        are that far: its snapshot has what they have called for. Raises `Stopping`."""
        if self._calling is not None:
            self._calling.finished(step)
        if self._serving is not None and (self._leads or held):
            self._serving.follow(step)

    def serve(self) -> None:
        """The rank is about to wait: answer."""
        if self._serving is not None and self._open:
            with self._calling.left() if self._calling is not None else nullcontext():
                self._serving.serve()

    def close(self) -> None:
        """Cancel what runs. Idempotent."""
        self._endpoint.on_wait = None
        if self._loop is not None:
            self._loop.close()

    def _wait(self, wait_ms: int) -> bool:
        if not self._open or self._running or self._loop is None or not self._loop.busy:
            return False
        self._loop.wait(wait_ms)
        return True
