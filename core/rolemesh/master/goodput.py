"""What failures cost, from the journal: each recovery, and the share of wall time that went into kept steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolemesh.observer import Event

__all__ = ["goodput", "recoveries"]


def recoveries(journal: Sequence[Event]) -> list[dict[str, Any]]:
    """Every recovery, in order.

    `level`, `causes`, `failures` (in words), `restarted` (ranks; of one that did not succeed, those it tried to),
    `seconds` from the failure (of a hang: from the last progress) until the ranks were ready, `regained_s` until they
    were again where they had been (None: the job ended before), `resumed` by rank the step they went on from,
    `outcome`.
    """
    found: dict[int, dict[str, Any]] = {}
    noticed: float | None = None
    last: int | None = None
    for event in journal:
        data = event.data
        if event.kind == "failure" and noticed is None:
            noticed = event.time - data["silent_s"]
        elif event.kind == "recovery_planned":
            if last is not None and not found[last]["outcome"]:
                found[last]["outcome"] = "merged"
                noticed = found[last]["noticed"]
            last = data["number"]
            found[last] = {
                "number": last,
                "level": data["plan"]["level"],
                "causes": data["causes"],
                "failures": data["failures"],
                "restarted": [f"{role}/{rank}" for role, rank in data["plan"]["restart"]],
                "seconds": None,
                "regained_s": None,
                "resumed": {},
                "outcome": "",
                "noticed": noticed if noticed is not None else event.time,
            }
            noticed = None
        elif event.kind == "recovery_launched" and last is not None:
            found[last]["resumed"] = {f"{r['role']}/{r['rank']}": r["resume"] for r in data["ranks"]}
        elif event.kind == "recovery_failed" and data["number"] in found:
            found[data["number"]]["outcome"] = "failed"
            noticed = found[data["number"]]["noticed"]
        elif event.kind == "recovered" and data["number"] in found:
            one = found[data["number"]]
            one["outcome"], one["seconds"] = "recovered", round(event.time - one["noticed"], 3)
        elif event.kind == "regained" and data["number"] in found:
            one = found[data["number"]]
            one["regained_s"] = round(event.time - one["noticed"], 3)
    return [{name: value for name, value in one.items() if name != "noticed"} for one in found.values()]


def goodput(journal: Sequence[Event], wall_s: float) -> dict[str, Any]:
    """The account of a job's wall time.

    `share` is what is left of `wall_s` after `lost_s`, divided by it. Lost by cause: ``start`` until all ranks were
    ready, ``stop`` from the decision to end until the end, and for each cause of a failure (``signal``, ``node_lost``,
    …) the time from it until the ranks that were started again were where they had been; where such times overlap they
    count once, for the earlier. Roles that did not fail may have gone on meanwhile, so the share is a lower bound.
    `master_down_s` is how long there was no master, in which ranks go on: it is not lost.
    """
    if not journal:
        return {"share": None, "productive_s": None, "lost_s": {}, "master_down_s": 0.0}
    begun, end = journal[0].time, journal[0].time + wall_s
    spans: list[tuple[float, float, str]] = []
    down = 0.0
    running = stopping = None
    before = journal[0]
    openings: dict[int, tuple[float, str]] = {}
    recovered: set[int] = set()
    noticed: float | None = None
    for event in journal:
        if event.epoch > before.epoch:
            down += event.time - before.time
        before = event
        match event.kind:
            case "job_running":
                running = event.time if running is None else running
            case "job_stopping":
                stopping = event.time
            case "failure":
                noticed = noticed if noticed is not None else event.time - event.data["silent_s"]
            case "recovery_planned":
                cause = (event.data["causes"] or ["unknown"])[0]
                since = noticed if noticed is not None else event.time
                # What had not been brought back yet is part of this recovery now.
                merged = [number for number in openings if number not in recovered]
                since, cause = min([(since, cause), *(openings.pop(number) for number in merged)])
                openings[event.data["number"]] = (since, cause)
                noticed = None
            case "recovered":
                recovered.add(event.data["number"])
            case "regained":
                since, cause = openings.pop(event.data["number"], (event.time, ""))
                spans.append((since, event.time, cause))
    spans.append((begun, end if running is None else running, "start"))
    if stopping is not None:
        spans.append((stopping, end, "stop"))
    until = end if stopping is None else stopping
    spans += [(since, until, cause) for since, cause in openings.values()]
    lost: dict[str, float] = {}
    covered = begun
    for since, until, cause in sorted(spans):
        seconds = min(until, end) - max(since, covered)
        if seconds > 0:
            lost[cause] = lost.get(cause, 0.0) + seconds
            covered = max(covered, min(until, end))
    productive = max(0.0, wall_s - sum(lost.values()))
    return {
        "share": round(productive / wall_s, 4) if wall_s > 0 else None,
        "productive_s": round(productive, 3),
        "lost_s": {cause: round(seconds, 3) for cause, seconds in lost.items()},
        "master_down_s": round(down, 3),
    }
