"""The requests of a rehearsal."""

from __future__ import annotations

import msgspec

from rolemesh_durable.protocol.failures import FaultKind

__all__ = ["InjectFault", "Release"]


class Release(msgspec.Struct, frozen=True, tag=True):
    """Let the ranks run up to `step`. The request must be repeated for a new master."""

    step: int


class InjectFault(msgspec.Struct, frozen=True, tag=True):
    """Inject a failure. `target` is ``master``, ``agent:<name>``, ``node:<id>``, or ``<role>/<rank>``.

    The master refuses if no living process with work would be hit. A master that is to die does not answer.
    """

    kind: FaultKind
    target: str
