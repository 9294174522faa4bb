"""The calls of the service `sample`: they share the engine's batches, and each ends with its own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import SamplingParams

    from rolemesh_vllm.requests import Requests

__all__ = ["Sampler"]


class _Waiter:
    """A coroutine that waits for its request."""

    __slots__ = ("error", "output", "woken")

    def __init__(self) -> None:
        self.output: Any = None
        self.error: BaseException | None = None
        self.woken: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self.output is not None or self.error is not None

    def take(self, output: Any) -> None:
        """Take an output of the engine; the last one ends the wait."""
        if output.finished:
            self.output = output
            self.wake()

    def fail(self, error: BaseException) -> None:
        """End the wait with an error of the engine."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        """Let the coroutine look again."""
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    async def wait(self) -> None:
        """Wait until something has changed."""
        self.woken = asyncio.get_running_loop().create_future()
        await self.woken


class Sampler:
    """Runs the requests of waiting coroutines.

    One of the coroutines runs the engine for all of them until its own request is done; then another one goes on. So
    no task outlives the calls. Between two batches the event loop turns once: the rank answers its neighbours, and new
    requests join.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._waiters: dict[str, _Waiter] = {}
        self._running = False

    async def sample(self, ids: Sequence[int], params: SamplingParams) -> Any:
        """Return the ``RequestOutput`` of a finished request. If the coroutine is cancelled, the request is aborted.

        Raises vLLM's error for a request that it refuses, and that of an engine that fails.
        """
        waiter = _Waiter()
        name = self._requests.add(ids, params, waiter.take)
        self._waiters[name] = waiter
        try:
            while not waiter.done:
                if self._running:
                    await waiter.wait()
                else:
                    await self._run(waiter)
            if waiter.error is not None:
                raise waiter.error
            return waiter.output
        finally:
            del self._waiters[name]
            self._requests.abort(name)
            if not self._running:
                self._hand_over()

    async def _run(self, waiter: _Waiter) -> None:
        """Run the engine until the request of `waiter` is done."""
        self._running = True
        try:
            while not waiter.done:
                await asyncio.sleep(0)  # before the batch, so that calls that came together begin together
                self._step()
        finally:
            self._running = False

    def _step(self) -> None:
        try:
            self._requests.step()
        except Exception as error:
            for waiter in self._waiters.values():
                waiter.fail(error)

    def _hand_over(self) -> None:
        """Wake a coroutine that runs the engine from here on."""
        for waiter in self._waiters.values():
            if not waiter.done:
                waiter.wake()
                return

    def finish(self) -> None:
        """Compute until no coroutine waits for tokens."""
        while any(not waiter.done for waiter in self._waiters.values()):
            self._step()

    def abort(self, reason: Exception) -> None:
        """End all requests with an error."""
        for name, waiter in self._waiters.items():
            self._requests.abort(name)
            waiter.fail(reason)
