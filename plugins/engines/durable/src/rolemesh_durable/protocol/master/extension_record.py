"""A transition that an extension journals."""

from __future__ import annotations

from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.transitions import Transition

__all__ = ["ExtensionRecord"]


class ExtensionRecord(Transition, frozen=True):
    """Something that has happened, in the words of an extension. Its tag is unique among all transitions."""

    def apply(self, state: JobState) -> None:
        """Bring `state` to where it is after this, for the master and for its successors. Pure.

        A record changes its extension's slice, and of the core's state what it has to. Most change nothing: people
        and observers read them.
        """
