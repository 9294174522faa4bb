"""The API for authors of flows: `@flow`, the job handle with its roles, and values that stand for
future results.

The handles only record the calls and their places; `rolemesh.graph.trace` checks them.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from rolemesh.errors import FlowError
from rolemesh.graph.logical import AtMost


class Flow:
    """A traced function: ``flow.function(job, **params)`` runs once, in the driver, and records its
    operator calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = function.__name__
        self.where = f"{_short(function.__code__.co_filename)}:{function.__code__.co_firstlineno}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise FlowError(
            f"flow {self.name!r} was called like a function, but a flow only describes a job",
            where=place_of(sys._getframe()),
            remedy="name it in a job file and use `rolemesh run`; share code between flows "
            "in plain functions",
        )

    def __repr__(self) -> str:
        return f"<flow {self.name} at {self.where}>"


def flow(function: Callable[..., Any]) -> Flow:
    """Declare a function as a flow. Its first parameter is the job; the others come from ``params``
    in the job file."""
    return Flow(function)


class Tracer(Protocol):
    """The object to which the handles report."""

    def call(
        self,
        role: str,
        operator: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Value: ...

    def role(self, name: str) -> RoleHandle: ...

    def feedback(self, name: str) -> Feedback: ...

    def bind(self, feedback: Feedback, value: object) -> None: ...


class Value:
    """The result of an operator call in a flow: a handle to pass to other calls, never the data
    itself.

    `op` is the id of the call; None if the call was wrong and its error is recorded.
    """

    __slots__ = ("_op", "_tracer", "_what")

    def __init__(self, tracer: Tracer, op: int | None, what: str) -> None:
        self._tracer = tracer
        self._op = op
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _not_data(self._what, f".{name}")

    def __repr__(self) -> str:
        return f"<value of {self._what}>"


class Feedback(Value):
    """A value that is used before the call that makes it: ``w = job.feedback("weights")``, later
    ``w.bind(job.trainer.weights())``.

    The calls that take it need a lag if it would otherwise close a cycle.
    """

    __slots__ = ("_bound", "_where")

    def __init__(self, tracer: Tracer, name: str, where: str) -> None:
        super().__init__(tracer, None, f"feedback {name!r}")
        self._bound: Value | None = None
        self._where = where

    def bind(self, value: object) -> None:
        """Set the call that makes the value."""
        self._tracer.bind(self, value)


def _not_data(what: str, use: str) -> FlowError:
    return FlowError(
        f"the value of {what} exists only while the job runs, so the flow cannot use it in {use}",
        where=place_of(sys._getframe()),
        remedy="a flow is traced once: pass the value whole to an operator, and look into it there",
    )


def _refuse_as_data() -> None:
    """Make every attempt to read a `Value` as data an error that explains tracing."""
    uses = {"bool": "if, while, and, or, not", "iter": "a loop or an unpacking", "contains": "in"}
    uses |= {"len": "len()", "int": "int()", "float": "float()", "index": "range() or an index"}
    uses |= {"getitem": "[...]", "setitem": "[...] =", "eq": "==", "ne": "!="}
    uses |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    binary = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}
    binary |= {"pow": "**", "matmul": "@", "or": "|", "and": "&"}
    uses |= binary | {f"r{name}": sign for name, sign in binary.items()}
    for name, use in uses.items():

        def refuse(self: Value, *_: object, use: str = use) -> Any:
            raise _not_data(self._what, use)

        setattr(Value, f"__{name}__", refuse)


_refuse_as_data()


class OperatorHandle:
    """``job.<role>.<operator>``: call it to add a call to the graph."""

    def __init__(self, tracer: Tracer, role: str, operator: str) -> None:
        self._tracer = tracer
        self._name = (role, operator)

    def __call__(
        self,
        *args: Any,
        lag: int | AtMost | Mapping[str, int | AtMost] = 0,
        initial: Mapping[str, Any] | None = None,
        every: int = 1,
        at: int | None = None,
        credits: int | None = None,
        calls: Sequence[RoleHandle] = (),
        **kwargs: Any,
    ) -> Value:
        """Call the operator with values of other calls (whole) and with constants.

        - `lag`: age in steps of the values of this call's inputs. ``AtMost(k)`` takes the newest
          value that is available, at most k steps old. A mapping gives the lag per parameter.
        - `initial`: by parameter, the constant that each rank takes until a value of the right age
          exists. Without it the call first runs when there is such a value; a loop needs one call
          without lag.
        - `every`, `at`: run on the steps with ``step % every == at`` (default: the last of each
          `every`).
        - `credits`: number of values that the producers may be ahead, beyond the lag (default: the
          job file's ``edges.credits``).
        - `calls`: the roles whose services the operator may call.
        """
        settings: dict[str, Any] = {"lag": lag, "initial": initial, "every": every, "at": at}
        settings |= {"credits": credits, "calls": calls}
        return self._tracer.call(*self._name, args, kwargs, settings)

    def __repr__(self) -> str:
        return f"<operator {'.'.join(self._name)}>"


class RoleHandle:
    """``job.<role>``: its attributes are the operators of the role's workload."""

    def __init__(self, tracer: Tracer, role: str) -> None:
        self._tracer = tracer
        self._role = role

    def __getattr__(self, operator: str) -> OperatorHandle:
        if operator.startswith("_"):
            raise AttributeError(operator)
        return OperatorHandle(self._tracer, self._role, operator)

    def __repr__(self) -> str:
        return f"<role {self._role}>"


class JobHandle:
    """First argument of a flow. Its attributes are the roles; `name`, `steps` and `seed` come from
    the job file."""

    def __init__(self, tracer: Tracer, *, name: str, steps: int | None, seed: int) -> None:
        self._tracer = tracer
        self.name = name
        self.steps = steps
        self.seed = seed

    def __getattr__(self, role: str) -> RoleHandle:
        if role.startswith("_"):
            raise AttributeError(role)
        return self._tracer.role(role)

    def feedback(self, name: str) -> Feedback:
        """Return a value that is used before the call that makes it; `name` is for messages."""
        return self._tracer.feedback(name)


def place_of(frame: FrameType) -> str | None:
    """Return ``file:line`` of the nearest code outside this package, from `frame` upwards."""
    return _outside(traceback.walk_stack(frame))


def place_of_error(error: BaseException) -> str | None:
    """Return ``file:line`` of the code that raised `error`, or that has the syntax error.

    Code of this package does not count, nor does the function that has caught the error.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    return _outside(reversed([*traceback.walk_tb(error.__traceback__)][1:]))


_OURS = ("rolemesh.graph.", "rolemesh.api.", "rolemesh.plugins.", "stevedore.", "importlib.")


def _outside(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return the first of these places that is neither in this package nor in Python's import
    system."""
    for frame, line in frames:
        name = str(frame.f_globals.get("__name__", "")).removeprefix("rolemesh.api.files.")
        if not f"{name}.".startswith(_OURS):
            return f"{_short(frame.f_code.co_filename)}:{line}"
    return None


def _short(path: str) -> str:
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative
