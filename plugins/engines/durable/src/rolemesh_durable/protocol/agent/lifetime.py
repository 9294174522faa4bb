"""The lifetime of an agent: without its master, after a request to end, and while its job stops."""

from __future__ import annotations

from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.messages import NOTICE_S
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["Lifetime"]

TERMINATE_SHARE = 0.5
"""Share of a rank's time to stop after which its operator gets a SIGTERM."""
NEVER: float = float("inf")


class Lifetime:
    """The agent lives `lease_s` seconds without a master. After half of that it asks the backend for one."""

    def __init__(self, lease_s: float) -> None:
        self.stopping = self.patient = False
        """True if ranks that are torn down may take any time to end (patient)."""
        self._lease_s = lease_s
        self._heard = self._revived = self._promised = -NEVER
        self._asking = False
        self._kill_at = self._terminate_at = self._quit_at = NEVER

    @property
    def leaving(self) -> bool:
        """True after a request to end."""
        return self._quit_at < NEVER

    def begin(self, now: float) -> None:
        """Count the first turn as a message of the master."""
        self._heard = now if self._heard == -NEVER else self._heard

    def heard(self, now: float) -> None:
        """Note a message of the master."""
        self._heard, self._asking = now, False

    def answered(self, comes: bool, now: float) -> None:
        """Note the backend's answer: there is, or will be, a master; or there is none."""
        self._asking = False
        self._promised = now if comes else -NEVER

    def leave(self, now: float) -> None:
        """Note a request to end."""
        self._quit_at = min(self._quit_at, now + NOTICE_S)

    def stop(self, grace_s: float, now: float, patient: bool = False) -> bool:
        """Note that the job stops. Return True if that is new."""
        if self.patient and not patient:
            self._kill_at = NEVER
        news, self.stopping, self.patient = not self.stopping, True, patient
        self._kill_at = min(self._kill_at, now + grace_s)
        if news and grace_s > 0:
            self._terminate_at = now + TERMINATE_SHARE * grace_s
        return news

    def over(self, now: float) -> bool:
        """Return True if the agent has lived without a master for too long, and has asked the backend for one."""
        asked = self._revived > self._heard
        return asked and not self.stopping and now > max(self._heard, self._promised) + self._lease_s

    def revive(self, now: float) -> bool:
        """Return True if the agent should ask the backend for a master."""
        silent = now > max(self._heard, self._revived) + self._lease_s / 2
        if not silent or self._asking or self.stopping:
            return False
        # Until the answer comes, which takes a while on a busy machine, it counts as a yes.
        self._revived = self._promised = now
        self._asking = True
        return True

    def kills(self, now: float) -> bool:
        """Return True if the grace of a stop is over."""
        return now >= self._kill_at

    def terminates(self, alive: list[StartRef], now: float) -> list[e.Terminate]:
        """In the middle of the grace, once: return the orders that end running operators."""
        if now < self._terminate_at:
            return []
        self._terminate_at = NEVER
        patience_s = TERMINATE_SHARE * (self._kill_at - now)
        return [e.Terminate(*start, patience_s) for start in alive]

    def quits(self, now: float) -> bool:
        """Return True if the agent has waited long enough for its ranks to move.

        Its next incarnation adopts the rest.
        """
        return now >= self._quit_at and not self.stopping
