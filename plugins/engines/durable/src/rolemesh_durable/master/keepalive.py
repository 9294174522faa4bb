"""Repeats the last watermarks to agents while the master has no turn: it lives, and has no news."""

from __future__ import annotations

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import Launcher

__all__ = ["Keepalive"]

KEEPALIVE_S = 1.0


class Keepalive:
    """Sends messages to agents, and repeats the last `Watermarks` of each.

    Repeated `Watermarks` change nothing: every grant in them was journalled before.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._last: dict[str, tuple[int, bytes]] = {}
        self._told = 0.0

    def send(self, agent: str, incarnation: int, message: m.MasterToAgent, now: float) -> None:
        """Send a message to an agent."""
        encoded = m.encode(message)
        if isinstance(message, m.Watermarks):
            self._last[agent], self._told = (incarnation, encoded), now
        self._launcher.send(agent, incarnation, encoded)

    def repeat(self, now: float) -> None:
        """Repeat the watermarks if it is time. Call this again and again while there is no turn."""
        if now < self._told + KEEPALIVE_S:
            return
        self._told = now
        for agent, (incarnation, encoded) in self._last.items():
            self._launcher.send(agent, incarnation, encoded)
