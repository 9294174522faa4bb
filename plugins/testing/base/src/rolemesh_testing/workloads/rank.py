"""The process of one rank under test: it makes the workload, serves requests, and returns the results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from importlib.metadata import EntryPoint
from multiprocessing.connection import Connection
from pathlib import Path
from types import GeneratorType
from typing import Any, NoReturn

import msgspec

from rolemesh.api.service import CalledBy
from rolemesh.api.workload import RankContext, Rendezvous, Workload
from rolemesh_runtime.constructing import constructed
from rolemesh_runtime.digest import digest
from rolemesh_runtime.values import join_chunks
from rolemesh_testing.leftovers import still_running
from rolemesh_testing.raising import as_raised
from rolemesh_testing.serving import prepare_process, serve_requests
from rolemesh_testing.workloads.items import made_items
from rolemesh_testing.workloads.lending import LendingPort
from rolemesh_testing.workloads.listed import made
from rolemesh_testing.workloads.outgoing import OutgoingCalls
from rolemesh_testing.workloads.wire import (
    Ask,
    Call,
    Done,
    Offload,
    Onload,
    Reply,
    Request,
    Restore,
    Returned,
    SetUp,
    Snapshot,
    Taken,
    TearDown,
    TornDown,
    packed,
    unpacked,
)

__all__ = ["serve"]


def serve(connection: Connection, meeting_fd: int | None) -> NoReturn:
    """Serve requests until the connection closes. `meeting_fd` is the group's socket, for rank 0."""
    rank = _Rank(connection, meeting_fd)
    decode, encode = msgspec.msgpack.Decoder(Request).decode, msgspec.msgpack.encode
    serve_requests(connection, lambda request: encode(rank.answer(decode(request))))


class _Rank:
    def __init__(self, connection: Connection, meeting_fd: int | None) -> None:
        self._meeting_fd = meeting_fd
        self._loop = asyncio.new_event_loop()
        self._calls = OutgoingCalls(connection, self._loop)
        self._port = LendingPort(self._calls, _fingerprint)
        self._workload: Workload = Workload()
        self._ctx: RankContext | None = None

    def answer(self, request: Request) -> Reply:
        """Serve a request. An exception of the workload is a valid answer."""
        try:
            self._port.check("a thread")
            match request:
                case SetUp():
                    self._set_up(request)
                case Call():
                    return self._call(request)
                case Ask():
                    answer = self._ask(request)
                    self._port.check(f"the service {request.service}")
                    return answer
                case Snapshot():
                    taken = self._taken()
                    self._port.check("snapshot()")
                    return taken
                case Restore():
                    self._workload.restore(unpacked(request.state))
                case Offload():
                    self._workload.offload()
                case Onload():
                    self._workload.onload()
                case TearDown():
                    self._workload.teardown()
                    self._loop.run_until_complete(self._loop.shutdown_default_executor())
                    return TornDown(*still_running())
        except (Exception, SystemExit) as error:
            self._port.note()
            return as_raised(error)
        self._port.note()
        return Done()

    def _set_up(self, order: SetUp) -> None:
        prepare_process(order.tmp_dir)
        cls: type[Any] = EntryPoint("it", order.target, "rolemesh.workloads").load()
        rendezvous = None
        if order.meeting is not None:
            rendezvous = Rendezvous(*order.meeting, order.generation, self._meeting_fd)
        tmp_dir = Path(order.tmp_dir)
        self._ctx = RankContext(
            options=cls.Options.model_validate(order.options, context={"base": order.base}),
            job="conformance",
            role="subject",
            rank=order.rank,
            world_size=order.world_size,
            local_rank=order.rank,
            local_world_size=order.world_size,
            seed=order.seed,
            steps=order.steps,
            turns=order.turns,
            rendezvous=rendezvous,
            generation=order.generation,
            run_dir=tmp_dir,
            tmp_dir=tmp_dir,
            base=Path(order.base),
            plugins={(each.kind, each.name): partial(made, each, order.base) for each in order.plugins},
            port=self._port,
        )
        self._workload = constructed(cls, self._ctx.options)
        self._workload.setup(self._ctx)

    def _call(self, call: Call) -> Returned:
        ctx = self._ctx
        assert ctx is not None
        ctx.step = call.step
        self._calls.begins(f"{ctx.rank}-{call.step}-{call.operator}")
        before = {name: _checksum(data) for name, data in call.arguments.items()}
        values = {name: unpacked(data) for name, data in call.arguments.items()}
        arguments = {name: iter(value) if name in call.streamed else value for name, value in values.items()}
        method = getattr(self._workload, call.operator)
        if call.shared is not None:
            result: Any = self._loop.run_until_complete(made_items(ctx, method, arguments, call.shared))
        elif inspect.iscoroutine(result := method(**arguments)):
            result = self._loop.run_until_complete(result)
        if type(result) is GeneratorType:
            chunks = list(result)
            if not chunks:
                raise ValueError(
                    f"{call.operator} yielded nothing; yield at least one chunk, empty if there are no rows"
                )
            result = join_chunks(chunks)
        self._port.note()
        written = tuple(name for name, data in call.arguments.items() if _checksum(data) != before[name])
        return Returned(None if result is None else packed(result), _fingerprint(result), written)

    def _ask(self, ask: Ask) -> Returned:
        assert self._ctx is not None
        self._ctx.step = ask.step
        before = _checksum(ask.arguments)
        with self._ctx.serving(CalledBy("caller", 0, ask.step, ask.session)):
            result = getattr(self._workload, ask.service)(*unpacked(ask.arguments))
            if inspect.iscoroutine(result):
                result = self._loop.run_until_complete(result)
        written = ("arguments",) if _checksum(ask.arguments) != before else ()
        return Returned(packed(result), _fingerprint(result), written)

    def _taken(self) -> Taken:
        state = self._workload.snapshot()
        if state is None:
            return Taken(None, "", {})
        if not isinstance(state, Mapping):
            raise TypeError(f"snapshot() returned a {type(state).__name__}, not a mapping of names to values")
        return Taken(packed(dict(state)), digest(state), {name: _described(value) for name, value in state.items()})


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _fingerprint(value: Any) -> str:
    """Return the fingerprint of a value. Equal values have equal ones. A value without canonical bytes is encoded
    first.
    """
    try:
        return digest({"value": value})
    except TypeError:
        return _checksum(packed(value)).hex()


def _described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return type(value).__name__ if shape is None or dtype is None else f"{type(value).__name__} {dtype} {tuple(shape)}"
