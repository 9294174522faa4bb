"""The messages between the parts of replicas in the master and in the agents."""

from __future__ import annotations

import msgspec

__all__ = ["CopyTo", "Copying"]


class CopyTo(msgspec.Struct, frozen=True, tag="replicas.copy_to"):
    """Copy snapshots to the agent at `address` from now on; "" for none, because there is no other agent.

    `number` counts the orders of this epoch: an earlier order is late, and an agent ignores it.
    """

    epoch: int
    number: int
    address: str


class Copying(msgspec.Struct, frozen=True, tag="replicas.copying"):
    """The agent has received the order with this epoch and number. It reports this from then on."""

    epoch: int
    number: int
