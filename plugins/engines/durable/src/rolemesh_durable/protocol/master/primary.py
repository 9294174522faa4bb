"""The primary one among several failures: the one that most likely caused the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol.master.error_texts import raised_lines

__all__ = ["is_echo", "primary", "weight"]

_ECHOES = ("connection reset", "connection closed", "connection refused", "broken pipe", "gloo", "nccl", "socket")


def is_echo(failure: Failure) -> bool:
    """Return True if this is a survivor's report of a peer's death: a broken connection of a collective."""
    text = " ".join([failure.message, *raised_lines(failure.traceback)]).lower()
    return failure.cause == "exception" and any(echo in text for echo in _ECHOES)


def weight(failure: Failure) -> int:
    """Return a sort key for failures by how likely they cause the others; 0 is most likely.

    The order is: a lost node or agent, then a death, then an exception. A collective's survivor raises a connection
    error within milliseconds of its peer's death, often before the master sees the death itself. So the order of
    arrival says little.
    """
    if failure.cause in ("node_lost", "agent_lost", "log_lost"):
        return 0
    if failure.cause in ("signal", "start", "environment", "hang", "check"):
        return 1
    if failure.cause in ("exception", "contract") and not is_echo(failure):
        return 2
    return 3 if failure.cause in ("exit", "straggler") else 4


def primary(failures: Sequence[Failure]) -> Failure:
    """Return the failure that most likely caused the others."""
    return min(failures, key=weight)
