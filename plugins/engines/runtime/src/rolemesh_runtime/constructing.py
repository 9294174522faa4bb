"""How engines, the kit and the debugger make a workload, so that all of them make it alike."""

from __future__ import annotations

import inspect
from typing import Any

from rolemesh import Workload

__all__ = ["constructed"]


def constructed(cls: type[Workload], options: Any) -> Workload:
    """Return a workload with its `options`. A constructor of its own may take them, or nothing.

    Raises what the constructor raises.
    """
    workload = cls(options) if inspect.signature(cls).parameters else cls()
    workload.options = options  # also if the constructor does not call that of `Workload`
    return workload
