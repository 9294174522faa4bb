"""All errors that users see: what happened, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_NOT_STARTED = 2
EXIT_INTERRUPTED = 130
EXIT_CODES = {"done": EXIT_DONE, "failed": EXIT_FAILED, "interrupted": EXIT_INTERRUPTED}
"""Status of a job that has ended → exit code."""


class RolemeshError(Exception):
    """Base class of the errors that the command line prints without a traceback.

    - `what`: the cause in one sentence.
    - `where`: the place, such as ``job.yaml:12: roles.trainer.use`` or ``role trainer, rank 1, step
      7``.
    - `remedy`: advice for the reader.
    """

    exit_code: int = EXIT_NOT_STARTED

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what, where, remedy)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what,), self.__dict__)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  → {self.remedy}" if self.remedy else head


class JobFileError(RolemeshError):
    """The job file, an override or an environment variable is wrong."""


Fault: TypeAlias = Literal[
    "missing", "ambiguous", "disabled", "refused", "incompatible", "broken", "misbehaved"
]
"""Kinds of `PluginError`. ``refused``: a lock or another policy forbids the plugin.
``incompatible``: it needs another version. ``misbehaved``: it broke its contract when called."""


class PluginError(RolemeshError):
    """A selected plugin is missing, ambiguous, broken, or does not fit this kernel."""

    def __init__(self, what: str, *, kind: Fault = "broken", **told: Any) -> None:
        super().__init__(what, **told)
        self.kind = kind


class OptionsError(RolemeshError):
    """A plugin refuses its options (raised by `Workload.check` in the driver)."""


class FlowError(RolemeshError):
    """The flow cannot be traced: unknown operator, cycle without lag, partition mismatch, unused
    role."""


class PlacementError(RolemeshError):
    """Some ranks cannot be placed. The message says which role is short of which resource."""


class NameInUseError(RolemeshError):
    """A running job already has this name."""


class BackendError(RolemeshError):
    """The cluster cannot be reached or started, or it cannot reserve what a job needs."""


class JobFailedError(RolemeshError):
    """A job that was started has failed."""

    exit_code = EXIT_FAILED


class Problems(RolemeshError):
    """Several errors found in one pass, printed one after the other."""

    def __init__(self, errors: Sequence[RolemeshError]) -> None:
        if not errors:
            raise ValueError("Problems needs at least one error")
        super().__init__(f"{len(errors)} problems")
        self.errors = tuple(errors)

    def __reduce__(self) -> tuple[object, ...]:
        return (Problems, (self.errors,))

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def raise_all(errors: Sequence[RolemeshError]) -> None:
    """Raise nothing, the only error, or all of them together."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise Problems(errors)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, or "" if no known name is close."""
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` or ``known: a, b, c`` as the remedy for a misspelled name."""
    names = sorted(known)
    listed = f"known: {', '.join(names)}" if names else "there are none"
    return did_you_mean(name, names) or listed
