"""How faults are put into real code: what mutations of every simulation are made with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

__all__ = ["all_of", "method"]


def method(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """Patches `owner`'s method `name` by what `make` makes of it, when called."""
    return lambda: patch.object(owner, name, make(getattr(owner, name)))


@contextlib.contextmanager
def all_of(*patches: Any) -> Iterator[None]:
    """Several patches at once."""
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield
