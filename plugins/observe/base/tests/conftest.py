from __future__ import annotations

import pytest
from tests.waiting import HANG_S

from rolemesh_view import patience, server


@pytest.fixture(autouse=True)
def _pages_wait_for_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page say "the viewer reads this run" because the machine is slow; tests of that set their limits."""
    for module, name in (
        *((server, name) for name in ("LIMIT_S", "MOST_S", "PAGE_S")),
        *((patience, name) for name in ("LIMIT_S", "ROW_S")),
    ):
        monkeypatch.setattr(module, name, HANG_S)
