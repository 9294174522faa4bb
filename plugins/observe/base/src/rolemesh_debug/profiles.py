"""A request for a profile of a rank, and the wait for its file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolemesh.api.observer import JobStatus
from rolemesh.api.rank_ref import RankRef
from rolemesh.cli.output import print_text
from rolemesh.errors import EXIT_FAILED, RolemeshError
from rolemesh_debug.living_ranks import asked_by
from rolemesh_debug.requests import ProfileRank
from rolemesh_durable.api.history import events, newest_event
from rolemesh_durable.api.jobs import ControlClient, LivingRun

__all__ = ["ProfileError", "profiled"]

LOOK_S = 0.5
"""Seconds between two looks at the events."""


class ProfileError(RolemeshError):
    """The rank has not written the profile."""

    exit_code = EXIT_FAILED


def profiled(run: LivingRun, status: JobStatus, ref: RankRef, steps: int) -> Path:
    """Let the rank profile its next steps, and return the file when it is written. Raises `ProfileError`."""
    reason, after = asked_by(f"rolemesh debug --profile {steps}"), newest_event(run)
    with ControlClient(run.path) as client:
        client.ask(ProfileRank(ref.role, ref.rank, steps, reason))
    print_text(f"{ref} profiles its next {steps} steps; Ctrl-C ends only this wait", err=True)
    while (told := _written(run, after, reason)) is None:
        now = run.status()
        if now is not None and now.master_pid != status.master_pid:
            raise ProfileError("the master has been restarted, and may have lost the order", remedy="ask again")
        if now is None and run.result() and _written(run, after, reason) is None:
            what = f"the job has ended before {ref} has had {steps} steps"
            raise ProfileError(what, where=str(run.path), remedy="ask earlier, or for fewer steps")
        time.sleep(LOOK_S)
    if failed := told.get("failed"):
        raise ProfileError(f"{ref} has written no profile: {failed}", where=str(run.path), remedy=_remedy(str(failed)))
    return run.path / str(told["file"])


def _written(run: LivingRun, after: int, reason: str) -> Mapping[str, Any] | None:
    """Return the data of the event with which the rank answers; None if there is none yet."""
    for page in events(run, after, journal=False):
        for event in page:
            if event.kind == "profile_written" and event.data.get("reason") == reason:
                return event.data
    return None


def _remedy(failed: str) -> str:
    if "torch" in failed:
        return "without --profile, the command shows the rank's stacks"
    return "the rank's log has the traceback: `rolemesh logs`"
