"""The actions on a running job: each needs a confirmation, and the events of the job name who asked."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Mapping
from typing import Final

from rolemesh.errors import RolemeshError
from rolemesh_durable.api.jobs import ControlClient, DrainNode, MasterGoneError, ResizeRequest, ask
from rolemesh_view.viewed import Viewed

__all__ = ["QUESTIONS", "act"]

QUESTIONS: Final = {
    "stop": "End the job now: its ranks finish the operator that runs, and all its processes are removed.",
    "finish": "End the job in good order: all ranks come to one step, with a last snapshot.",
    "scale": "Change the number of ranks: all ranks stop after one step, and go on from a checkpoint of it.",
    "drain": "Move all ranks off the node.",
}
PATIENCE_S = 20.0


def act(run: Viewed, what: str, given: Mapping[str, str]) -> str:
    """Ask the job's master for it, and return what to tell the reader. A refusal is such a text, too."""
    if what not in QUESTIONS:
        return f"there is no action {what!r}"
    if not run.live():
        return f"{run.name} does not run on this machine"
    reason = f"rolemesh view: {what}, by {getpass.getuser()} (pid {os.getpid()}, {time.time():.0f})"
    try:
        return _ask(run, what, given, reason)
    except (MasterGoneError, RolemeshError) as error:
        return str(error)


def _ask(run: Viewed, what: str, given: Mapping[str, str], reason: str) -> str:
    if what == "scale":
        role, ranks = given.get("role", ""), given.get("ranks", "")
        if not role or not ranks.isdecimal():
            return "name a role and its number of ranks"
        since = time.monotonic()
        over = lambda: time.monotonic() > since + PATIENCE_S or run.run.result() is not None  # noqa: E731
        told = ask(run.path, ResizeRequest({role: int(ranks)}, reason), over, wait=False)
        return f"{role} → {ranks} ranks: {told.kind if told is not None else 'the master did not answer'}"
    with ControlClient(run.path) as client:
        match what:
            case "stop":
                client.stop(reason)
            case "finish":
                client.finish(reason)
            case "drain":
                client.ask(DrainNode(given.get("node", ""), reason))
    return "asked; the events show what follows"
