"""The actions on a running job: each needs a confirmation, and the events of the job name who asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from rolemesh.errors import RolemeshError
from rolemesh_debug.living_ranks import asked_by, find_rank, process_of
from rolemesh_debug.requests import NoteStacks, ProfileRank
from rolemesh_durable.api.jobs import (
    ControlClient,
    DrainNode,
    MasterGoneError,
    RefusedError,
    ResizeRequest,
    ask,
    take_stacks,
)
from rolemesh_view.viewed import Viewed

__all__ = ["QUESTIONS", "act"]

QUESTIONS: Final = {
    "stop": "End the job now: its ranks finish the operator that runs, and all its processes are removed.",
    "finish": "End the job in good order: all ranks come to one step, with a last snapshot.",
    "scale": "Change the number of ranks: all ranks stop after one step, and go on from a checkpoint of it.",
    "drain": "Move all ranks off the node.",
    "stacks": "Show the stacks of the rank's threads. py-spy pauses the rank for some milliseconds.",
    "profile": "Profile steps of the rank with torch.profiler. They take longer; the trace goes to the run's folder.",
}
ANSWERS: Final = {
    "": "the master has not answered; the events show whether it does",
    "had": "the role has this number of ranks already",
    "resize_asked": "asked. The page Flow shows what was predicted, and then what was measured",
    "resize_refused": "refused; the events say why",
    "resized": "done. The page Flow shows what was predicted, and soon what was measured",
}
"""Texts about a resize, by the kind of the master's answer; "" for none."""
PATIENCE_S = 20.0


def act(run: Viewed, what: str, given: Mapping[str, str]) -> str:
    """Ask the job's master for it, and return what to tell the reader. A refusal is such a text, too."""
    if what not in QUESTIONS:
        return f"there is no action {what!r}"
    if not run.live():
        return f"{run.name} does not run on this machine"
    reason = asked_by(f"rolemesh view: {what}")
    try:
        return _inspect(run, what, given, reason) if what in ("stacks", "profile") else _ask(run, what, given, reason)
    except (MasterGoneError, RolemeshError) as error:
        return str(error)


def _ask(run: Viewed, what: str, given: Mapping[str, str], reason: str) -> str:
    if what == "scale":
        role, ranks = given.get("role", ""), given.get("ranks", "")
        if not role or not ranks.isdecimal():
            return "name a role and its number of ranks"
        since = time.monotonic()
        over = lambda: time.monotonic() > since + PATIENCE_S or run.run.result() is not None  # noqa: E731
        request, wanted = ResizeRequest({role: int(ranks)}, reason), f"{role} → {ranks} rank{'s' * (int(ranks) != 1)}"
        with ControlClient(run.path) as client:
            if why := request.refusal(client):
                return f"{wanted}: refused: {why}"
        told = ask(run.path, request, over, wait=False)
        return f"{wanted}: {ANSWERS.get(told.kind, told.kind) if told is not None else ANSWERS['']}"
    with ControlClient(run.path) as client:
        match what:
            case "stop":
                client.stop(reason)
            case "finish":
                client.finish(reason)
            case "drain":
                client.ask(DrainNode(given.get("node", ""), reason))
    where = "page Placement says at the node" if what == "drain" else "events show"
    return f"asked; the {where} what follows"


def _inspect(run: Viewed, what: str, given: Mapping[str, str], reason: str) -> str:
    """Return the stacks of a rank, or order a profile of it. The event that says so comes first."""
    steps = given.get("steps", "")
    with ControlClient(run.path) as client:
        status = client.status()
        found = find_rank(status, f"{given.get('role', '')}/{given.get('rank', '')}")
        role, rank = found.ref
        try:
            if what == "profile":
                client.ask(ProfileRank(role, rank, int(steps) if steps.isdecimal() else 0, reason))
                return f"{found.ref} profiles its next {steps} steps; the event profile_written names the file"
            process_of(status, found)
            client.ask(NoteStacks(role, rank, reason))
        except RefusedError as error:
            return f"{error} (stacks and profiles need the extension `debug` in the job file)"
    return f"{found.ref}, step {found.step}\n\n{take_stacks(found.pid)}"
