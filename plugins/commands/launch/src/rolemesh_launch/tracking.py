"""The API for scripts that keep their state: `track`, and `Run.done` after each step.

Outside a job, under plain python or torchrun, both do nothing, so the script runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Host", "Run", "Stateful", "current", "newer", "track"]


class Stateful(Protocol):
    """An object with these two methods: a model, an optimizer, a schedule, a data loader."""

    def state_dict(self) -> Any:
        """Return the whole state, as nested mappings and lists of tensors, arrays, numbers, text and bytes."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore a state that `state_dict` returned."""


class Host(Protocol):
    """The object that keeps the state of this process's script."""

    def kept(self, name: str) -> Any:
        """Return the state of this object that an earlier life kept; None if there is none, or `track` was called."""

    def forget(self) -> None:
        """Drop the state of an earlier life."""

    def begin(self, objects: Mapping[str, Stateful]) -> int:
        """Keep the state of these objects from now on, and load that of an earlier life. Return the number of steps
        that it had done."""

    def done(self, step: int, metrics: Mapping[str, Any]) -> None:
        """In total, `step` steps are done."""


current: Host | None = None
"""The host of the script that runs in this process."""


class Run:
    """The result of `track`. `step` is the number of steps done, including those of earlier lives."""

    def __init__(self, host: Host | None, step: int) -> None:
        self._host, self.step = host, step

    def done(self, /, **metrics: Any) -> None:
        """Report that a step is done. Numbers, or tensors of one element, are metrics of the step.

        All ranks call it equally often, from the script's main thread, when none of them is in a collective.
        """
        self.step += 1
        if self._host is not None:
            self._host.done(self.step, metrics)


def newer(name: str, step_of: Callable[[Any], int], own: int) -> str:
    """Choose between the state that an earlier life kept and another one, after `own` steps, from which a trainer
    resumes itself; 0 if it does not. The kept state counts unless the other one is newer; then it is dropped.

    `step_of` returns the number of steps of the kept state of the object `name`. Returns a sentence for the user, "" if
    there is only one state.
    """
    left = current.kept(name) if current is not None else None
    if current is None or left is None or not own:
        return ""
    step = step_of(left)
    if step >= own:
        return f"KeepState goes on after its step {step}, not from the trainer's own checkpoint of step {own}"
    current.forget()
    return f"the trainer goes on from its own checkpoint of step {own}, which is newer than KeepState's step {step}"


def track(**objects: Stateful) -> Run:
    """Keep the state of these objects, and load the state that an earlier life of this process left, if any.

    All ranks call it once, with the same names, after the objects are complete: DDP or FSDP have wrapped the model, and
    the optimizer has its parameters. Draw no random numbers between this call and the first step, because it also
    restores the global generators. Raises `TypeError` for an object without ``state_dict`` and ``load_state_dict``,
    `ValueError` if the kept state belongs to other objects, and the errors of their ``load_state_dict``.
    """
    for name, found in objects.items():
        if not (hasattr(found, "state_dict") and hasattr(found, "load_state_dict")):
            raise TypeError(f"track({name}=…) has got a {type(found).__qualname__}, without a state_dict to keep")
    host = current
    return Run(host, 0 if host is None else host.begin(objects))
