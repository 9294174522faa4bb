"""The process of a harness under test: it holds conversations that follow scripts, and returns what the harness did."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from rolemesh.api.import_ref import ImportRef
from rolemesh.api.port import LocalPort
from rolemesh.api.workload import RankContext
from rolemesh_agents import ConversationFailedError, EndReached, Harness
from rolemesh_testing.harnesses.scripted import ScriptedConversation
from rolemesh_testing.harnesses.wire import End, Ended, Held, Hold, Order, Ready, Reply, Request, SetUp, Talked
from rolemesh_testing.leftovers import files_below, still_running
from rolemesh_testing.raising import as_raised
from rolemesh_testing.serving import prepare_process, serve_requests

__all__ = ["serve"]


def serve(connection: Connection, _: int | None) -> NoReturn:
    """Serve requests until the connection closes."""
    life, loop = _Life(), asyncio.new_event_loop()
    decode, encode = msgspec.msgpack.Decoder(Request).decode, msgspec.msgpack.encode
    serve_requests(connection, lambda request: encode(loop.run_until_complete(life.answer(decode(request)))))


class _Life:
    def __init__(self) -> None:
        self._harness: Harness | None = None
        self._folder = Path()
        self._log: IO[str] | None = None

    async def answer(self, request: Request) -> Reply:
        """Serve a request. An exception of the harness is a valid answer."""
        try:
            match request:
                case SetUp():
                    await self._set_up(request)
                    return Ready()
                case Hold():
                    return Held(tuple(await asyncio.gather(*map(self._hold, request.orders))))
                case End():
                    return await self._end()
        except (Exception, SystemExit) as error:
            return as_raised(error)

    @property
    def harness(self) -> Harness:
        assert self._harness is not None
        return self._harness

    async def _set_up(self, order: SetUp) -> None:
        prepare_process(order.folder)
        self._folder, self._log = Path(order.folder), open(order.log, "a", buffering=1)  # noqa: SIM115 (of the process)
        cls: Any = ImportRef(order.target).resolve()
        self._harness = cls(cls.Options.model_validate(order.options, context={"base": order.base}))
        ctx = RankContext(
            job="conformance",
            role="agent",
            run_dir=self._folder,
            tmp_dir=self._folder,
            base=Path(order.base),
            port=LocalPort(),
        )
        self.harness.check_machine(ctx)
        await self.harness.setup(ctx)

    async def _hold(self, order: Order) -> Talked:
        talk = ScriptedConversation(order, self._note)
        task = asyncio.ensure_future(self.harness.run(talk))
        talk.cancel = task.cancel
        ended, error = "returned", ""
        try:
            await task
        except EndReached:
            ended = "over"
        except ConversationFailedError as failed:
            ended, error = "failed", str(failed)
        except asyncio.CancelledError:
            ended = "cancelled"
        except Exception as raised:
            told = as_raised(raised)
            ended, error = "raised", f"{told.error}\n{told.trace}"
        return Talked(ended, error, tuple(talk.calls), talk.samples, tuple(talk.checked()))

    def _note(self, call: str) -> None:
        assert self._log is not None
        self._log.write(f"{call}\n")

    async def _end(self) -> Ended:
        await self.harness.close()
        await asyncio.sleep(0)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.get_running_loop().shutdown_default_executor()
        threads, children = still_running()
        return Ended((*threads, *(f"task {task.get_coro()}" for task in tasks)), children, files_below(self._folder))
