"""The messages between the kit and a process with a harness, as structs for MessagePack. No behaviour here."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh_testing.harnesses.scripts import Script
from rolemesh_testing.raising import Raised

__all__ = ["End", "Ended", "Held", "Hold", "Order", "Ready", "Reply", "Request", "SetUp", "Talked"]


class SetUp(msgspec.Struct, frozen=True, tag=True):
    """Make the harness. `folder` is for temporary files. `log` is the file to which each call is written."""

    target: str
    options: dict[str, Any]
    base: str
    folder: str
    log: str


class Order(msgspec.Struct, frozen=True):
    """A conversation to hold.

    Before the call with the number `over_at`, `fails_at` or `hangs_at`, from 0, the conversation ends, fails, or gives
    no more answers. Before the call `cancelled_at`, its task is cancelled.
    """

    script: Script
    number: int = 0
    seed: int = 7
    over_at: int | None = None
    fails_at: int | None = None
    hangs_at: int | None = None
    cancelled_at: int | None = None


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Hold conversations, all at the same time."""

    orders: tuple[Order, ...]


class End(msgspec.Struct, frozen=True, tag=True):
    """Close the harness, and report what is left."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The harness is made and set up."""


class Talked(msgspec.Struct, frozen=True):
    """A conversation that was held.

    - `ended`: "returned", "over" (`EndReached`), "failed" (`ConversationFailedError`), "cancelled" or "raised".
    - `error`: the exception's text and traceback.
    - `calls`: the calls of methods of the conversation, as JSON texts, those of `judge` included.
    - `samples`: number of turns of the model.
    - `wrong`: the uses that no conversation allows, one sentence each.
    """

    ended: str
    error: str
    calls: tuple[str, ...]
    samples: int
    wrong: tuple[str, ...]


class Held(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Hold`, in its order."""

    talks: tuple[Talked, ...]


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The answer to `End`: threads, processes and temporary files that are left."""

    threads: tuple[str, ...]
    children: tuple[str, ...]
    files: tuple[str, ...]


Request: TypeAlias = SetUp | Hold | End
Reply: TypeAlias = Ready | Held | Ended | Raised
