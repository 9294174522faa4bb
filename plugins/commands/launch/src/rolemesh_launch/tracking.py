"""What a script says to have its state kept: `track`, and `Run.done` after each step.

Outside a job, under plain python or torchrun, they do nothing, so that a script runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Host", "Run", "Stateful", "current", "track"]


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a data loader: anything with these two methods."""

    def state_dict(self) -> Any:
        """Everything it is, as nested mappings and lists of tensors, arrays, numbers, text and bytes."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Become what `state_dict` has told."""


class Host(Protocol):
    """Who keeps the state of the script of this process."""

    def begin(self, objects: Mapping[str, Stateful]) -> int:
        """Keep these from now on, and load what an earlier life has left; the number of steps that it had done."""

    def done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """So many steps are done in all."""


current: Host | None = None
"""Whose script runs."""


class Run:
    """What `track` returns. `step` is how many steps are done, those of earlier lives included."""

    def __init__(self, host: Host | None, step: int) -> None:
        self._host, self.step = host, step

    def done(self, **metrics: Any) -> None:
        """A step is done, in every rank; numbers, or tensors of one element, are metrics of the step.

        All ranks call it equally often, from the script's main thread, where none of them is in a collective.
        """
        self.step += 1
        if self._host is not None:
            self._host.done(self.step, metrics)


def track(**objects: Stateful) -> Run:
    """Have the state of these kept, and load what an earlier life of this process has left of them, if any.

    All ranks call it, once, with the same names, when the objects are made: DDP or FSDP have wrapped the model, and the
    optimizer has its parameters. Nothing random comes between it and the first step: it sets the global generators,
    too. Raises `TypeError` for an object without ``state_dict`` and ``load_state_dict``, `ValueError` if what is there
    is of other objects, and what their ``load_state_dict`` raises.
    """
    for name, found in objects.items():
        if not (hasattr(found, "state_dict") and hasattr(found, "load_state_dict")):
            raise TypeError(f"track({name}=…) has got a {type(found).__qualname__}, without a state_dict to keep")
    host = current
    return Run(host, 0 if host is None else host.begin(objects))
