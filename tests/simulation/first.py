"""The first schedule that shows each mutation. For a late one, the search begins there.

``python -m tests.simulation first`` finds them and writes them to ``first.json``: run it when the protocol, or
what a schedule draws, has changed. If one has moved, the tests take longer, and still find it or fail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.mutations import Mutation

__all__ = ["find_first", "first_schedules"]

FILE = Path(__file__).parent / "first.json"
SOON = 8
"""Number of schedules. If one of the first ones shows a mutation, the search begins with schedule 0."""
MOST = 30_000


def first_schedules() -> dict[str, int]:
    """Return the first schedules, by the names of mutations."""
    found: dict[str, int] = json.loads(FILE.read_text())
    return found


def find_first(mutations: Sequence[Mutation]) -> list[str]:
    """Write the first schedules; return the names of mutations that no schedule shows. A first that is still near its
    old place stays there."""
    known, firsts, missed = first_schedules(), {}, []
    for mutation in mutations:
        first, _ = mutation.search(known.get(mutation.name, 0), SOON)
        if first is None:
            first, _ = mutation.search(0, MOST)
        if first is None:
            missed.append(mutation.name)
        elif first >= SOON:
            firsts[mutation.name] = first
    FILE.write_text(json.dumps(firsts, indent=1, sort_keys=True) + "\n")
    return missed
