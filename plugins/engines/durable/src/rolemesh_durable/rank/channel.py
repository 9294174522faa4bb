"""Channels: messages between the parts of one extension in several ranks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.frames import CHANNEL, CHANNELS

__all__ = ["Channels", "Receive", "Send"]

Receive: TypeAlias = Callable[[str, int, int, bytes], None]
"""``receive(role, rank, generation, body)`` takes a message of another rank."""
Send: TypeAlias = Callable[[str, int, bytes], None]
"""``send(role, rank, body)`` sends a message to another rank, and returns at once."""


class Channels:
    """The channels of one rank, by name."""

    def __init__(self, endpoint: Endpoint, roles: Sequence[str]) -> None:
        """`roles` are the roles of the flow, in the same order in each rank."""
        self._endpoint, self._roles = endpoint, tuple(roles)
        self._receive: dict[str, Receive] = {}

    def open(self, name: str, receive: Receive) -> Send:
        """Open the channel `name` (at most 255 bytes), and return the function that sends on it.

        The rank can send to ranks that the flow connects with it, and to those of its collective group. Messages
        between two lives of ranks arrive in order and at most once. Those to a dead rank are lost. `receive` also gets
        earlier messages. The rank drops a message for which it raises `struct.error`.
        """
        self._receive[name] = receive
        self._endpoint.register_taker(CHANNEL, self._take)
        return partial(self._send, name.encode())

    def _send(self, name: bytes, role: str, rank: int, body: bytes) -> None:
        site = self._endpoint.site
        head = CHANNELS.pack(CHANNEL, len(name), 0, self._roles.index(site.role), site.rank, site.generation)
        self._endpoint.sender(role, rank).send(head + name + body)

    def _take(self, frame: bytes) -> bool:
        try:
            _, size, _, role, rank, generation = CHANNELS.unpack_from(frame)
            name = frame[CHANNELS.size : CHANNELS.size + size].decode()
            sender = self._roles[role]
        except (UnicodeDecodeError, IndexError, struct.error):
            return self._refuse(frame)
        receive = self._receive.get(name)
        if receive is None:
            return False
        try:
            receive(sender, rank, generation, frame[CHANNELS.size + size :])
        except struct.error:
            self._refuse(frame)
        return True

    def _refuse(self, frame: bytes) -> bool:
        self._endpoint.refuse(f"a message on a channel with {len(frame)} bytes")
        return True
