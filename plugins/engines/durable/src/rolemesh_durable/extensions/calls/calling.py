"""The calling end: an operator's calls go to the ranks that answer them, and the answers come back to the operator."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, Final

from msgspec.structs import replace

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import ServiceSpec
from rolemesh.errors import RolemeshError, nearest
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import Buffer, encode
from rolemesh_durable.extensions.calls.ends import CallerEnd
from rolemesh_durable.extensions.calls.frames import GIVE_UP, LATE, LOST, Answer, Request, frame_of, kept_answer, key_of
from rolemesh_durable.extensions.calls.history import BEGUN, ENDED, CallHistory, Session
from rolemesh_durable.extensions.calls.phases import CALLING, position_of
from rolemesh_durable.extensions.calls.states import OpenCall, edges_of_calls, hold_of_call
from rolemesh_durable.extensions.calls.waiting import Waiting
from rolemesh_durable.protocol.rank import page as status
from rolemesh_durable.protocol.rank.phases import Stay
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_durable.rank.channel import Send
from rolemesh_durable.rank.frames import CREDIT, CREDITS
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.services import Rank
from rolemesh_runtime.served import count_here

__all__ = ["Calling"]

LATE_ANSWERS: Final = 10_000
"""Maximum number of calls that a rank has given up and whose late answers it still expects. It forgets the oldest."""


class Calling(CallerEnd[Waiting]):
    """The calls of one rank. Its operators see it as `rolemesh.api.service.Caller`."""

    def __init__(self, rank: Rank, send: Send) -> None:
        """`send` sends on the channel of calls."""
        graph, role = rank.job.graph, rank.ctx.role
        self._graph, self._ctx = graph, rank.ctx
        self._edges = {pair.callee: pair for pair in edges_of_calls(graph) if pair.caller == role}
        super().__init__({role: rank.job.world_sizes[role] for role in self._edges})
        self._holds = {op.id: hold_of_call(op, rank.job.activity, rank.job.unrepeated) for op in graph.of_role(role)}
        """The steps for which each operator call may ask again: see `states.hold_of_call`."""
        self._mail, self._fields, self._waits = rank.ports.mail, rank.ports.fields, rank.ports.waits
        self._tasks, self._log, self._channel = rank.tasks, rank.log, send
        self._abandoned: dict[bytes, str] = {}
        """The services of calls that the rank has given up, by key. A late answer still has the service's reports."""
        self._line: CallSequence | None = None
        """The line whose answers the status page counts."""
        self._blocked: Stay | None = None
        """The present wait of all coroutines for answers."""
        self._untold = False
        self._pairs = {callee: pair for pair, (caller, callee) in enumerate(graph.callers) if caller == role}
        rank.tasks.loop.on_block(self._blocks)
        port_of(rank.ctx).caller = self

    # ------------------------------------------------------------------------------------------- what the rank tells

    def remember(self, log: SendLog) -> None:
        """Read the calls, outcomes and sessions of former lives."""
        self._history = CallHistory(log.decisions)

    def finished(self, step: int) -> None:
        """Note that all operators of `step` are done."""
        super().finished(step)
        if not self._untold:
            self._untold = True
            self._mail.put_off(self)

    def flush(self) -> None:
        """Tell the callees this rank's finished step."""
        self._untold = False
        super().flush()

    # ---------------------------------------------------------------------------------- what `CallerEnd` decides

    def _life(self, rank: RankRef) -> int:
        return self._mail.generation(*rank)

    def _tell(self, rank: RankRef) -> None:
        site = self._mail.site
        frame = CREDITS.pack(CREDIT, self._edges[rank.role].answers, site.rank, site.generation, self._finished)
        self._channel(*rank, frame)

    def _decide(self, scope: str, call: OpenCall[Waiting], body: bytes) -> None:
        if self._log is not None:
            self._log.decide(scope, call.item.step, call.item.hold, body)

    def _send(self, call: OpenCall[Waiting]) -> None:
        waiting = call.item
        frame = waiting.frame
        if waiting.request is not None:
            words = replace(waiting.request, life=call.sent_to)
            frame = self._frame(words, waiting.buffers, call.role, waiting.step)
        self._channel(call.role, call.rank, frame)

    def _gives_up(self, call: OpenCall[Waiting]) -> None:
        waiting = call.item
        if self._waits.stopping or self._tasks.ending:
            return
        words = Request(call.key, GIVE_UP, waiting.step + waiting.hold, -1, b"")
        self._channel(call.role, call.rank, self._frame(words, (), call.role, waiting.step))
        self._abandoned[call.key] = f"{waiting.role}.{waiting.method}"
        if len(self._abandoned) > LATE_ANSWERS:
            del self._abandoned[next(iter(self._abandoned))]

    def _has_lost(self, call: OpenCall[Waiting], kind: int) -> None:
        call.item.answered(Answer(call.key, kind, b""), ())

    # ----------------------------------------------------------------------------------------- what operators do

    async def call(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call`."""
        if not self._tasks.here():
            raise self._wrong("ctx.call is awaited outside the operator", "await it in an `async def` operator")
        waiting, limit = self._ask(role, method, args, session, timeout)
        try:
            if waiting.answer is None:
                waiting.future = self._tasks.loop.future()
                async with asyncio.timeout(limit):
                    await waiting.future
        except TimeoutError:
            self._late(waiting, limit)
        finally:
            self._over(waiting)
        return self._value(waiting)

    def call_and_wait(self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None) -> Any:
        """See `RankContext.call_and_wait`."""
        if self._tasks.here():
            raise self._wrong("ctx.call_and_wait stops an `async def` operator", "write `await ctx.call(...)`")
        waiting, limit = self._ask(role, method, args, session, timeout)
        try:
            self._wait(waiting, limit)
        finally:
            self._over(waiting)
        return self._value(waiting)

    def session(self, role: str) -> str:
        """See `RankContext.session`."""
        line = self._present(role, None)[0]
        op, step, path = line.op, line.step, line.next()
        key = key_of(op.id, step, path, role, "", b"", ())
        if (known := self._history.session(key)) is not None:
            return known
        self._waits.until(lambda: self._state.up(role), CALLING, self._place(role))
        site, size, up = self._mail.site, self._sizes[role], self._state.up(role)
        label = f"{site.role}-{site.rank}-{step}-{op.id}{path}"
        chosen = zlib.crc32(label.encode()) % size
        rank = min(up, key=lambda rank: (rank - chosen) % size)
        name = Session(role, rank, self._state.life(RankRef(role, rank))).named(label)
        if self._log is not None:
            self._log.decide(BEGUN, step, self._holds[op.id], key + name.encode())
        return name

    def _ask(
        self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None
    ) -> tuple[Waiting, float | None]:
        line, spec = self._present(role, method)
        site, op, step = self._mail.site, line.op, line.step
        waiting = Waiting(role, method, f"{site.ref.in_words}, step {step}")
        header, buffers = encode(args)
        key = key_of(op.id, step, line.next(), role, f"{method} {session}", header, buffers)
        if (known := self._history.outcome(key)) is not None:
            waiting.answer = kept_answer(known)
            return waiting, None
        named = self._parse(role, session) if session else None
        waiting.call = call = self._history.open(key, spec, named, role, waiting)
        waiting.step, waiting.hold = step, self._holds[op.id]
        words = Request(key, method, step + waiting.hold, call.life, header, session)
        waiting.frame = self._frame(words, buffers, role, step)
        call.nbytes = len(waiting.frame)
        if call.once and call.life < 0:
            waiting.request, waiting.buffers = words, buffers
        waiting.keeps = self._log if spec.logged else None
        self._open(call)
        self._leave()
        return waiting, timeout if timeout is not None else spec.timeout_s

    def _present(self, role: str, method: str | None) -> tuple[CallSequence, ServiceSpec]:
        """Return the task of the calling operator, and the called service; with None, any service of the role."""
        line = CallSequence.present() if self._tasks.here() else self._tasks.line
        if line is None:
            raise self._wrong(f"{role} is called outside an operator", "call it in an operator: services call nobody")
        if role not in line.op.calls:
            raise self._wrong(f"{line.op.label} may not call role {role!r}", f"say so in the flow: calls=[job.{role}]")
        services = self._graph.services[role]
        if method is not None and method not in services:
            raise self._wrong(f"role {role!r} has no service {method!r}", nearest(method, services))
        return line, services[method] if method is not None else next(iter(services.values()))

    def _parse(self, role: str, session: str) -> Session:
        """Return the session of a name."""
        found = Session.parse(session)
        if found is None or found.role != role:
            raise self._wrong(f"{session!r} is no session with role {role!r}", f"begin one: ctx.session({role!r})")
        return found

    def _frame(self, words: Request, buffers: Sequence[Buffer], role: str, step: int) -> bytes:
        site = self._mail.site
        return frame_of(words, buffers, self._edges[role].asks, site.rank, site.generation, step)

    def _over(self, waiting: Waiting) -> None:
        if waiting.call is not None:
            self._close(waiting.call)

    def _value(self, waiting: Waiting) -> Any:
        """Count what the service has reported, in the item and step of the caller, and return its result."""
        if waiting.answer is not None:
            count_here(self._ctx, f"{waiting.role}.{waiting.method}", waiting.answer[0].reports)
        return waiting.value()

    def _wait(self, waiting: Waiting, limit: float | None) -> None:
        rank = waiting.call.rank if waiting.call is not None else -1
        ends = monotonic_ns() + round(limit * 1e9) if limit is not None else 0
        place = self._place(waiting.role, rank)
        if not self._waits.until(lambda: waiting.answer is not None, CALLING, place, deadline=ends):
            self._late(waiting, limit)

    def _blocks(self, begins: bool) -> None:
        """Note that all of the operator's coroutines wait, or that they no longer do."""
        if begins and self._state.open:
            call = next(iter(self._state.open.values()))
            self._blocked = self._waits.enter(CALLING, self._place(call.role, call.rank), call.item.since)
        elif self._blocked is not None:
            stay, self._blocked = self._blocked, None
            self._waits.leave(stay)

    def _place(self, role: str, rank: int = -1) -> int:
        return position_of(self._pairs[role], rank)

    def _late(self, waiting: Waiting, limit: float | None) -> None:
        """End a call that has no answer within its limit. A repeated call of a logged service ends in the same way."""
        assert waiting.call is not None
        header, buffers = encode(f"{waiting.name} has not answered within {limit:g} s")
        answer = Answer(waiting.call.key, LATE, header)
        self._keep(waiting, answer, buffers, 0, 0)
        waiting.answer = answer, buffers

    def _keep(self, waiting: Waiting, answer: Answer, buffers: Sequence[Buffer], source: int, generation: int) -> None:
        if waiting.keeps is not None:
            edge = self._edges[waiting.role].answers
            frame = frame_of(answer, buffers, edge, source, generation, waiting.step)
            waiting.keeps.decide(ENDED, waiting.step, waiting.hold, answer.key + frame)

    def _wrong(self, what: str, remedy: str) -> RolemeshError:
        site = self._mail.site
        line = self._tasks.line
        step = f", step {line.step}" if line is not None else ""
        return RolemeshError(what, where=f"{site.ref.in_words}{step}", remedy=remedy)

    # ------------------------------------------------------------------------------------------------ what comes in

    def arrived(self, source: int, generation: int, answer: Answer, buffers: Sequence[Buffer]) -> None:
        """Take an answer."""
        found = self._answered(answer.key, source, generation, answer.kind)
        if found is None:
            if (label := self._abandoned.pop(answer.key, "")) != "":
                count_here(self._ctx, label, answer.reports)
            return
        waiting = found[0].item
        if found[1] != answer.kind:
            answer = Answer(answer.key, found[1], b"")
        if answer.kind != LOST:
            self._keep(waiting, answer, buffers, source, generation)
        if self._tasks.line is not self._line:
            self._line, self._fields[status.ANSWERED] = self._tasks.line, 0
        self._fields[status.ANSWERED] += 1
        waiting.answered(answer, buffers)
        self._leave()
