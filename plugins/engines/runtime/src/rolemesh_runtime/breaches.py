"""Breaches of contract: what an operator may not return. Another attempt would return it again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeGuard, TypeVar

from rolemesh.api.service import CallError
from rolemesh.errors import PluginError

__all__ = ["ServiceBreach", "breach", "is_breach", "refusing"]

P = ParamSpec("P")
T = TypeVar("T")


class ServiceBreach(CallError, PluginError):
    """The service of another role, which the message names, has broken its contract."""


def breach(what: str, remedy: str | None = None) -> PluginError:
    """Return the error for an operator that breaks its contract."""
    return PluginError(what, kind="misbehaved", remedy=remedy)


def is_breach(error: BaseException) -> TypeGuard[PluginError]:
    """Return True if a plugin, also one of an operator, has broken its contract."""
    return isinstance(error, PluginError) and error.kind == "misbehaved"


def refusing(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of operators' values raise a breach instead of `TypeError` and `ValueError`."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            raise breach(str(error)) from error

    return checked
