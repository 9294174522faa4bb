"""The content of each page, from the facts of a run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from rolemesh_facts.curves import Curve, curve_of
from rolemesh_facts.labels import meaning
from rolemesh_facts.node_load import NETWORK, loads
from rolemesh_facts.overview import Pace, by_importance, pace_of
from rolemesh_facts.palette import PHASES
from rolemesh_facts.run import Summary
from rolemesh_facts.series import thinned
from rolemesh_facts.sizes import sizes_at
from rolemesh_recorder.reading import recorded_ranks
from rolemesh_runtime.waiting import Waiting
from rolemesh_view import logs
from rolemesh_view.axis import axes_of, marks_of
from rolemesh_view.edge_rows import bytes_text
from rolemesh_view.flow_page import flow
from rolemesh_view.overview import goal_of, overview
from rolemesh_view.placement import nodes
from rolemesh_view.rows_page import CHOOSING, follows, lists, rows
from rolemesh_view.stories import deaths, event_text, told_of
from rolemesh_view.text import shown
from rolemesh_view.viewed import Viewed

__all__ = ["PAGES", "STREAMED", "changing", "frame", "job", "silent", "waiting"]

Query = Mapping[str, str]
STREAMED: Final[Mapping[str, Sequence[str]]] = {
    "overview": (), "flow": (), "time": (), "metrics": (), "advice": (), "logs": ("file",), "failures": (),
    "failure": ("number",), "rows": CHOOSING, "events": ("kind", "find"), "placement": ("find",),
}  # fmt: skip
"""Pages with parts that change while the job runs, each with what of its address these parts depend on."""
WHILE_LIVE: Final = ("failures", "failure", "rows", "events", "placement")
"""Pages whose parts nobody sends again when the job has ended: they may be large."""
MOST_LOADS, MOST_NODES = 32, 200
"""Maximum numbers of nodes whose load, and whose ranks, the page of placement shows."""
DRAINS: Final = ("drain_asked", "drain_waiting", "drained", "drain_over")
"""Kinds of events about the drain of nodes."""
RECOVERING: Final = ("recovery_planned", "recovery_launched", "recovered", "regained")
"""Kinds of events with the number of a recovery."""
NO_RESULT: Final = "No process of the job is alive on this machine, and it has written no result: it was killed."
"""Text of the pages about a run whose master is gone."""


def frame(run: Viewed, page: str, query: Query) -> dict[str, Any]:
    """Return what the frame of each page of a run shows.

    `mark` changes when the job ends, and when another run takes the folder: then pages load again.
    """
    with run.lock:
        summary, live, state, lacks = run.facts.summary(), run.live(), run.state(), run.lacks_soon()
        quiet_s = run.quiet_s()
    follows_ = page in STREAMED and (page not in WHILE_LIVE or live or state == "new")
    return {
        "stream": stream(run, page if follows_ and (page != "rows" or follows(query)) else "", query),
        "run": run.name, "page": {"failure": "failures"}.get(page, page), "state": state, "live": live,
        "summary": summary, "mark": f"{state} {summary.began:.6f}",
        "trouble": NO_RESULT if state == "died" else "" if state == "done" else summary.message, "lacks": lacks,
        "quiet": f"{quiet_s // 60:.0f} min" if quiet_s else "", "path": shlex.quote(str(run.path.absolute())),
        "pages": [name for name in PAGES if name != "failure"],
    }  # fmt: skip


def stream(run: Viewed, page: str, query: Query) -> str:
    """Return the address of what changes on a page of a run, below the viewer's root."""
    chosen = {name: query[name] for name in STREAMED.get(page, ()) if query.get(name)}
    return f"run/{quote(run.name, safe='')}/live?" + urlencode({"page": page, **chosen}, errors="replace")


def changing(run: Viewed, page: str, query: Query, known: object = None) -> tuple[object, dict[str, Any]]:
    """Return the contents of the parts of a page that change while the job runs, by their names, and their version.

    A text goes to the page's script. A dictionary is what the template ``PAGE_part.html`` shows. The contents are empty
    if their version is `known`. A version of None says nothing about them.
    """
    with run.lock:
        if page == "time":
            return None, {"record": str(run.whole().end), "live": _time(run, {})}
        if page == "metrics":
            return None, {"metrics": str(run.facts.metrics_bytes())}
        if page == "logs":
            found = _logs(run, query)
            names, text = [shown(name, 100) for name in found["files"]], shown(found["tail"], logs.TAIL_BYTES)
            return None, {"files": msgspec.json.encode(names).decode(), "log": msgspec.json.encode(text).decode()}
        if page == "rows":
            kept = run.rows.entries()
            if run.rows.version == known:
                return known, {}
            content = lists(run, query, kept)
            return run.rows.version, {"live": content, "rows": content["newest"]}
        if page in WHILE_LIVE:
            events = run.facts.events()
            version = len(events), events[-1].time if events else 0.0
            return version, {} if version == known else {"live": PAGES[page](run, query)}
        return None, {"live": PAGES[page](run, query)} if page in STREAMED else {}


def job(run: Viewed) -> dict[str, Any]:
    """Return the row of a run in the list of jobs."""
    with run.lock:
        summary = run.facts.summary()
        pace = pace_of(run.facts.paced(), summary, time.time() if run.live() else None)
        return {"run": run.name, "state": run.state(), "summary": summary, "pace": pace, "goal": goal_of(run.facts)}


def silent(name: str, *, reads: bool = False) -> dict[str, Any]:
    """Return the row of a run whose store does not answer, or whose files the viewer still `reads`."""
    told = (
        ("reading", "the viewer still reads this run")
        if reads
        else ("no answer", "the store of this run does not answer")
    )
    summary = Summary(name, told[0], -1, None, 0.0, 0.0, told[1], {}, None)
    return _bare(summary)


def waiting(job: Waiting) -> dict[str, Any]:
    """Return the row of a job that waits for room."""
    summary = Summary(job.job, "waiting", -1, None, job.since, 0.0, str(job), {}, None)
    return _bare(summary, max(0.0, time.time() - job.since))


def _bare(summary: Summary, elapsed: float | None = None) -> dict[str, Any]:
    """Return a row that shows nothing but the summary."""
    pace = Pace(elapsed, None, None)
    return {"run": summary.name, "state": summary.state, "summary": summary, "pace": pace, "goal": None}


def _time(run: Viewed, query: Query) -> dict[str, Any]:
    return {"phases": {phase: meaning(phase) for phase in PHASES if phase != "engine"}, "beginnings": run.beginnings()}


def _failures(run: Viewed, query: Query) -> dict[str, Any]:
    events = run.facts.events()
    told = told_of(run.facts.stories(), events, str(run.facts.result().get("status", "")))
    return {"told": told, "deaths": deaths(events), "event_text": event_text}


def _failure(run: Viewed, query: Query) -> dict[str, Any]:
    wanted = _int(query.get("number"), 0)
    all_ = told_of(run.facts.stories(), run.facts.events(), str(run.facts.result().get("status", "")))
    found = next((each for each in all_ if each.story.number == wanted), None)
    story, events = found.story if found is not None else None, []
    if story is not None:
        end = story.began + (story.regained_s or story.ready_s or 60.0) + 1.0
        told = run.facts.events()  # in their order, which a step of the clock does not change
        own = [at for at, each in enumerate(told) if each.data.get("number") == wanted and each.kind in RECOVERING]
        first, last = (own[0], own[-1]) if own else (0, -1)
        events = [each for at, each in enumerate(told) if first <= at <= last or story.began - 1.0 <= each.time <= end][
            :500
        ]
    return {"told": found, "story": story, "wanted": wanted, "events": events, "event_text": event_text}


def _metrics(run: Viewed, query: Query) -> dict[str, Any]:
    size = run.facts.metrics_bytes()
    names = by_importance(run.facts.metric_names())
    return {"names": names, "size": size, "axes": axes_of(run.facts), "marks": len(marks_of(run.facts, ""))}


def _logs(run: Viewed, query: Query) -> dict[str, Any]:
    files = {path.name: path for path in run.facts.logs()}
    find, name = query.get("find", ""), query.get("file", "")
    ordered = sorted(files.values(), key=lambda path: path.name != "master.log")
    told = (path for path in ordered if logs.tail(path, 1))
    chosen = files.get(name) or next(told, None) or next(iter(ordered), None)
    searched = [files[name]] if name in files and find else [*files.values()] if find else []
    hits = logs.search(searched, find)
    shown_file = chosen.name if chosen else ""
    return {
        "files": list(files), "file": shown_file, "find": find, "hits": hits,
        "tail": logs.tail(chosen) if chosen and not find else "",
        "long": chosen is not None and logs.exceeds(chosen, logs.TAIL_BYTES),
        "cut": [path.name for path in searched if logs.exceeds(path, logs.SEARCH_BYTES)],
        "stream": stream(run, "" if find else "logs", {"file": shown_file}),
    }  # fmt: skip


def _placement(run: Viewed, query: Query) -> dict[str, Any]:
    flow, events = run.facts.flow(), run.facts.events()
    find = query.get("find", "")
    all_ = nodes(events, sizes_at(flow, events) if flow else {})
    passing = [node for node in all_ if find in ("", node.name, *(f"{each.role}/{each.rank}" for each in node.ranks))]
    found = passing[:MOST_NODES]
    roles = list(dict.fromkeys(place.role for node in all_ for place in node.ranks))
    drains: dict[str, str] = {}
    for event in events:
        if event.kind in DRAINS:
            named = event.data.get("nodes", [event.data.get("node")])
            drains |= dict.fromkeys(map(str, named if isinstance(named, list) else ()), event_text(event))
    return {
        "nodes": found, "passing": len(passing), "all": len(all_), "find": find,
        "roles": {role: at % 8 for at, role in enumerate(roles)}, "drains": drains,
        "loads": {node.name: _loads(run, node.name) for node in found[:MOST_LOADS]},
    }  # fmt: skip


def _loads(run: Viewed, node: str) -> list[tuple[str, str, str, Curve]]:
    """Return the kinds of load of a node: name, latest values, upper end of the axis, and curve."""
    found = []
    for each in loads(run.facts.usage(node)):
        curve = curve_of(thinned(each.shares, 200), 260, 74, (0.0, 1.0), smooth=False)
        if each.what == NETWORK:
            found.append((each.what, f"{each.said}, at most {bytes_text(each.full)}", "most", curve))
        else:
            found.append((each.what, each.said, "100 %", curve))
    return found


def _job_file(run: Viewed, query: Query) -> dict[str, Any]:
    result = run.facts.result()
    plugins = result.get("plugins")
    return {
        "file": run.facts.job_file(), "other": query.get("with", ""), "differences": None,
        "plugins": plugins if isinstance(plugins, dict) else {},
        "result": msgspec.json.format(
            msgspec.json.encode({key: value for key, value in result.items() if key != "plugins"}), indent=2
        ).decode(),
    }  # fmt: skip


def _advice(run: Viewed, query: Query) -> dict[str, Any]:
    look = run.look_soon()
    return {"found": look.advice if look else [], "recorded": bool(recorded_ranks(run.path)), **run.reading(look)}


def _events(run: Viewed, query: Query) -> dict[str, Any]:
    kinds, find = query.get("kind", ""), query.get("find", "")
    events = run.facts.events()
    found = [
        each
        for each in reversed(events)
        if (not kinds or each.kind == kinds) and (not find or find in str(each.data) or find in event_text(each))
    ]
    return {
        "events": found[:500], "total": len(found), "kinds": sorted({each.kind for each in events}), "kind": kinds,
        "find": find, "event_text": event_text,
    }  # fmt: skip


def _int(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else default


PAGES: Final[Mapping[str, Callable[[Viewed, Any], dict[str, Any]]]] = {
    "overview": overview, "flow": flow, "time": _time, "failures": _failures, "failure": _failure,
    "metrics": _metrics, "rows": rows, "logs": _logs, "events": _events, "placement": _placement, "job": _job_file,
    "advice": _advice,
}  # fmt: skip
