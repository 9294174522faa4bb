"""How long an agent lives: without its master, after it was told to end, and while its job stops."""

from __future__ import annotations

from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.messages import NOTICE_S
from rolemesh_durable.protocol.refs import StartRef

__all__ = ["Lifetime"]

TERMINATE_SHARE = 0.5
"""Of the time that a rank has to stop: after this share of it the operator that it is in gets a SIGTERM."""
NEVER: float = float("inf")


class Lifetime:
    """`lease_s` is how long it lives without its master; the backend is asked for one after half of that."""

    def __init__(self, lease_s: float) -> None:
        self.stopping = self.patient = False
        """Patient: ranks that are torn down may take any time to end."""
        self._lease_s = lease_s
        self._heard = self._revived = self._promised = -NEVER
        self._asking = False
        self._kill_at = self._terminate_at = self._quit_at = NEVER

    @property
    def leaving(self) -> bool:
        """Whether it was told to end."""
        return self._quit_at < NEVER

    def begin(self, now: float) -> None:
        """Its first turn counts as a word of its master."""
        self._heard = now if self._heard == -NEVER else self._heard

    def heard(self, now: float) -> None:
        """Its master has said something."""
        self._heard, self._asking = now, False

    def answered(self, comes: bool, now: float) -> None:
        """The backend says that there is, or will be, a master; or that there is none."""
        self._asking = False
        self._promised = now if comes else -NEVER

    def leave(self, now: float) -> None:
        """Somebody has told it to end."""
        self._quit_at = min(self._quit_at, now + NOTICE_S)

    def stop(self, grace_s: float, now: float, patient: bool = False) -> bool:
        """The job stops; whether that is news."""
        if self.patient and not patient:
            self._kill_at = NEVER
        news, self.stopping, self.patient = not self.stopping, True, patient
        self._kill_at = min(self._kill_at, now + grace_s)
        if news and grace_s > 0:
            self._terminate_at = now + TERMINATE_SHARE * grace_s
        return news

    def over(self, now: float) -> bool:
        """Whether it has lived without a master for too long, and the backend was asked for one."""
        asked = self._revived > self._heard
        return asked and not self.stopping and now > max(self._heard, self._promised) + self._lease_s

    def revive(self, now: float) -> bool:
        """Whether the backend is to be asked for a master."""
        silent = now > max(self._heard, self._revived) + self._lease_s / 2
        if not silent or self._asking or self.stopping:
            return False
        # Until the answer is there, which takes a while on a busy machine, it counts as a yes.
        self._revived = self._promised = now
        self._asking = True
        return True

    def kills(self, now: float) -> bool:
        """Whether the grace of a stop is over."""
        return now >= self._kill_at

    def terminates(self, alive: list[StartRef], now: float) -> list[e.Terminate]:
        """In the middle of the grace, once: what ranks compute is to be ended."""
        if now < self._terminate_at:
            return []
        self._terminate_at = NEVER
        patience_s = TERMINATE_SHARE * (self._kill_at - now)
        return [e.Terminate(*start, patience_s) for start in alive]

    def quits(self, now: float) -> bool:
        """Whether it has waited long enough to be relieved of its ranks: its next incarnation adopts what is left."""
        return now >= self._quit_at and not self.stopping
