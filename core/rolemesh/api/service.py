"""Calls between roles beside the flow's steps: what a workload declares with `@service`, and what a
call can raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

import msgspec

from rolemesh.api.rank_ref import OfRank
from rolemesh.errors import RolemeshError

F = TypeVar("F", bound=Callable[..., Any])


class ServiceSpec(msgspec.Struct, frozen=True):
    """A method that other roles may call.

    `concurrency`: calls that run at once in a rank. `timeout_s`: limit of one call in seconds, None
    for no limit. `recorded`: a restarted caller takes the outcomes of calls from its own log.
    `repeatable`: a call may run again after a death.
    """

    name: str
    concurrency: int = 1
    timeout_s: float | None = None
    recorded: bool = False
    repeatable: bool = True

    @property
    def logged(self) -> bool:
        """True if callers log the outcomes of calls."""
        return self.recorded or not self.repeatable


class CalledBy(OfRank, frozen=True):
    """The caller of a service: its rank, the step of its operator, and the session ("" for
    none)."""

    step: int
    session: str = ""


class CallError(RolemeshError):
    """A service raised; the message has the exception and its traceback."""


class CallTimeoutError(CallError):
    """A service did not answer within its time limit."""


class SessionLostError(CallError):
    """The rank of the session restarted, and the session is lost. Begin another one with
    `RankContext.session`."""


class CallUncertainError(CallError):
    """A call of a service that is not repeatable left the caller, and its rank died before it
    answered, or cancelled the call. It may have run, wholly, partly, or not at all."""


class Caller(Protocol):
    """The engine's part that executes a rank's calls; a `RankPort` has these methods."""

    async def call(
        self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None
    ) -> Any:
        """See `RankContext.call`."""

    def call_and_wait(
        self, role: str, method: str, args: tuple[Any, ...], session: str, timeout: float | None
    ) -> Any:
        """See `RankContext.call_and_wait`."""

    def session(self, role: str) -> str:
        """See `RankContext.session`."""


@overload
def service(function: F, /) -> F: ...
@overload
def service(
    *,
    concurrency: int = 1,
    timeout_s: float | None = None,
    recorded: bool = False,
    repeatable: bool = True,
) -> Callable[[F], F]: ...
def service(
    function: Any = None,
    /,
    *,
    concurrency: int = 1,
    timeout_s: float | None = None,
    recorded: bool = False,
    repeatable: bool = True,
) -> Any:
    """Declare a method as a service, which operators of other roles call (`RankContext.call`).

    The service must be idempotent. If its rank dies during a call, another rank, or the next
    process of the rank, runs the call again. If the caller restarts, it repeats the call; the
    callee runs it again unless the answer is still in its memory. With `recorded` the caller keeps
    the outcomes of calls (answers, errors, timeouts) in its log, and takes them from there after a
    restart. With ``repeatable=False`` no call runs twice: the caller keeps the outcomes too, and it
    receives `CallUncertainError` instead of a second attempt. If a caller gives up a call, because
    of a timeout or a cancelled task, rolemesh cancels the ``async def`` method
    (`asyncio.CancelledError`). Only such a method can have a `concurrency` above 1. Raises
    `TypeError` for an invalid declaration.
    """

    def mark(function: F) -> F:
        name = function.__name__
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"service {name!r} is a generator; return one value")
        if concurrency < 1 or (concurrency > 1 and not inspect.iscoroutinefunction(function)):
            raise TypeError(
                f"service {name!r}: concurrency={concurrency} needs an `async def` method, "
                "and at least 1"
            )
        spec = ServiceSpec(name, concurrency, timeout_s, recorded, repeatable)
        function.__rolemesh_service__ = spec  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def services_of(cls: type[Any]) -> dict[str, ServiceSpec]:
    """Return the methods of `cls` that are marked with `@service`, by name."""
    return marked(cls, "__rolemesh_service__")


def marked(cls: type[Any], mark: str) -> dict[str, Any]:
    """Return the values of the attribute `mark` of those methods of `cls` that have it, by name."""
    found = {name: getattr(inspect.getattr_static(cls, name), mark, None) for name in dir(cls)}
    return {name: spec for name, spec in found.items() if spec is not None}
