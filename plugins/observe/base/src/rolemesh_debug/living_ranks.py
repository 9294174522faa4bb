"""The ranks of a running job that a tool looks at: their names, and their processes on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rolemesh.api.observer import JobStatus, RankStatus
from rolemesh.errors import EXIT_NOT_STARTED, RolemeshError, nearest
from rolemesh_debug.process_facts import ProcessFacts, look
from rolemesh_runtime.user import user_name

__all__ = ["RankGoneError", "asked_by", "find_rank", "process_of"]


class RankGoneError(RolemeshError):
    """The rank has no process that can be looked at from here."""

    exit_code = EXIT_NOT_STARTED


def find_rank(status: JobStatus, asked: str) -> RankStatus:
    """Return the rank ``ROLE/RANK``; ``ROLE`` alone is its rank 0. Raises `RankGoneError` if there is none."""
    known = {str(each.ref): each for each in status.ranks}
    found = known.get(asked) or known.get(f"{asked}/0" if "/" not in asked else "")
    if found is None:
        raise RankGoneError(f"{status.name} has no rank {asked!r}", remedy=nearest(asked, list(known)))
    return found


def process_of(status: JobStatus, rank: RankStatus) -> ProcessFacts:
    """Return the facts about the process of a rank. Raises `RankGoneError` if it has none on this machine."""
    facts = look(rank.pid) if rank.pid > 0 else None
    if facts is None or not _is_ours(rank.pid, f"rolemesh: {status.name} {rank.ref}"):
        raise RankGoneError(
            f"{rank.ref} has no process on this machine: it is {rank.state}, on node {rank.node or '?'}",
            remedy="run this command on that node, or wait until the rank has started",
        )
    return facts


def asked_by(what: str) -> str:
    """Return the reason of a request, which says who asks. No other request has the same one."""
    return f"{what}, by {user_name()} (pid {os.getpid()}, {time.time():.3f})"


def _is_ours(pid: int, title: str) -> bool:
    """Return whether the process has this title, or its beginning: pids of another machine may be in use here."""
    try:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return False
    return len(shown) > len("rolemesh: ") and title.startswith(shown)
