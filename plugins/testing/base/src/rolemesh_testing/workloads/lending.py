"""Lent memory of a rank under test: consumers may read it while no operator runs, so nobody may write to it then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rolemesh.api.port import LocalPort
from rolemesh.errors import RolemeshError

__all__ = ["LendingPort"]

T = TypeVar("T")
MOMENT_S = 0.05
"""Maximum seconds that the threads which an operator has started get to end before the next request."""


class LendingPort(LocalPort):
    """A port that notices what changes in lent memory."""

    def __init__(self, caller: Any, fingerprint: Callable[[Any], str]) -> None:
        super().__init__(caller)
        self._fingerprint = fingerprint
        self._lent: list[tuple[str, Any]] = []
        self._known: list[str] = []

    def lend(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """See `RankContext.lend`. They stay where they are."""
        self._lent += tensors.items()
        return super().lend(tensors)

    def note(self) -> None:
        """The workload may write now, and is done with it."""
        self._known = [self._fingerprint(tensor) for _, tensor in self._lent]

    def check(self, who: str) -> None:
        """Raise `RolemeshError` if lent memory has changed since `note`. `who` may have written to it."""
        self._wait_for_threads()
        found = [self._fingerprint(tensor) for _, tensor in self._lent[: len(self._known)]]
        changed = sorted({self._lent[at][0] for at, known in enumerate(self._known) if found[at] != known})
        self._known = found
        if changed:
            what = f"{who} writes to memory that is lent ({', '.join(changed)}), which consumers may be reading"
            raise RolemeshError(what, remedy="change it in operators only, before they return")

    def _wait_for_threads(self) -> None:
        left = MOMENT_S if self._lent else 0.0
        for thread in threading.enumerate():
            if left > 0 and thread is not threading.current_thread():
                thread.join(left)
                left = 0.0 if thread.is_alive() else left
