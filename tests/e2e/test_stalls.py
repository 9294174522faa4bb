"""A store or a disk that stands still, or is full, for longer than a lease: the job waits for it, and loses nothing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, SLOW, ended_well, launched, of_kind, pids

from rolemesh.state import SQLITE_FILE

Make = Callable[..., Job]
LEASE_S = 5.0


def test_a_journal_that_is_locked_for_longer_than_a_lease_costs_nothing_and_the_status_says_so(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW, f"lease_s={LEASE_S}")
    before = job.running(10)
    with closing(sqlite3.connect(job.run_dir / SQLITE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        until = time.monotonic() + 1.5 * LEASE_S
        warned: tuple[str, ...] = ()
        while time.monotonic() < until:
            status = job.status()
            assert status is not None, "the master answers"
            warned = status.warnings or warned
            time.sleep(0.1)
        other.execute("ROLLBACK")
    assert "the journal cannot be written" in warned[0]
    after = job.running(status.committed + 5)
    assert (after.epoch, pids(after), after.warnings) == (before.epoch, pids(before), ())
    ended_well(job, process)
    assert launched(job) == []
    assert of_kind(job, "agent_lost", "rolled_back") == []
