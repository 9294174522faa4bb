"""The content of each page, from the facts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from rolemesh_view import logs
from rolemesh_view.flow_page import flow
from rolemesh_view.placement import nodes
from rolemesh_view.rows_page import rows
from rolemesh_view.viewed import Viewed

__all__ = ["PAGES", "frame", "jobs"]

Query = Mapping[str, str]
PHASES: Final = (
    "computing", "waiting", "blocked", "idle", "calling", "serving", "following", "gathering", "saving", "turn",
    "starting", "setup", "restoring",
)  # fmt: skip


def frame(run: Viewed, page: str) -> dict[str, Any]:
    """Return what the frame of each page of a run shows."""
    return {
        "run": run.name, "page": page, "state": run.state(), "live": run.live(), "summary": run.facts.summary(),
        "pages": [name for name in PAGES if name != "failure"],
    }  # fmt: skip


def jobs(runs: Iterable[Viewed]) -> list[dict[str, Any]]:
    """Return one row per run."""
    found = []
    for run in runs:
        with run.lock:
            found.append({"run": run.name, "state": run.state(), "summary": run.facts.summary()})
    return found


def _time(run: Viewed, query: Query) -> dict[str, Any]:
    return {"phases": PHASES}


def _failures(run: Viewed, query: Query) -> dict[str, Any]:
    return {"stories": run.facts.stories()}


def _failure(run: Viewed, query: Query) -> dict[str, Any]:
    stories = run.facts.stories()
    wanted = _int(query.get("number"), 0)
    story = next((each for each in stories if each.number == wanted), None)
    events = []
    if story is not None:
        end = story.began + (story.regained_s or story.ready_s or 60.0) + 1.0
        events = [each for each in run.facts.events() if story.began - 1.0 <= each.time <= end][:500]
    return {"story": story, "wanted": wanted, "events": events}


def _metrics(run: Viewed, query: Query) -> dict[str, Any]:
    return {"names": list(run.facts.series(4))}


def _logs(run: Viewed, query: Query) -> dict[str, Any]:
    files = {path.name: path for path in run.facts.logs()}
    find, name = query.get("find", ""), query.get("file", "")
    chosen = files.get(name) or files.get("master.log") or next(iter(files.values()), None)
    hits = logs.search([files[name]] if name in files and find else files.values(), find) if find else []
    return {
        "files": list(files), "file": chosen.name if chosen else "", "find": find, "hits": hits,
        "tail": logs.tail(chosen) if chosen and not find else "",
    }  # fmt: skip


def _placement(run: Viewed, query: Query) -> dict[str, Any]:
    found = nodes(run.facts.events())
    roles = list(dict.fromkeys(place.role for node in found for place in node.ranks))
    return {"nodes": found, "roles": {role: at % 8 for at, role in enumerate(roles)}}


def _job(run: Viewed, query: Query) -> dict[str, Any]:
    result = run.facts.result()
    plugins = result.get("plugins")
    return {
        "file": run.facts.job_file(),
        "plugins": plugins if isinstance(plugins, dict) else {},
        "result": msgspec.json.format(
            msgspec.json.encode({key: value for key, value in result.items() if key != "plugins"}), indent=2
        ).decode(),
    }


def _advice(run: Viewed, query: Query) -> dict[str, Any]:
    return {"found": run.look().advice}


def _events(run: Viewed, query: Query) -> dict[str, Any]:
    kinds, find = query.get("kind", ""), query.get("find", "")
    events = run.facts.events()
    found = [
        each for each in reversed(events) if (not kinds or each.kind == kinds) and (not find or find in str(each.data))
    ]
    return {
        "events": found[:500], "total": len(found), "kinds": sorted({each.kind for each in events}), "kind": kinds,
        "find": find,
    }  # fmt: skip


def _int(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else default


PAGES: Final[Mapping[str, Callable[[Viewed, Any], dict[str, Any]]]] = {
    "flow": flow, "time": _time, "failures": _failures, "failure": _failure, "metrics": _metrics, "rows": rows,
    "logs": _logs, "events": _events, "placement": _placement, "job": _job, "advice": _advice,
}  # fmt: skip
