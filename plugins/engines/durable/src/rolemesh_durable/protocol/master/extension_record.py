"""A transition that an extension journals."""

from __future__ import annotations

from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.transitions import Transition

__all__ = ["ExtensionRecord"]


class ExtensionRecord(Transition, frozen=True):
    """Something that has happened to an extension. Its tag is unique among all transitions."""

    def apply(self, state: JobState) -> None:
        """Change `state` for this transition, both in the master and in its successors. Pure.

        A record changes its extension's slice, and the core's state where it must. Most records change nothing: they
        are for people and observers.
        """
