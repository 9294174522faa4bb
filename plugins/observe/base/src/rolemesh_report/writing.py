"""Reads a run's folder and writes its report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rolemesh_facts import RunFacts
from rolemesh_facts.output import replaced
from rolemesh_facts.palette import phase_of
from rolemesh_facts.time_use import by_role, edge_uses
from rolemesh_report import sections
from rolemesh_report.flow_picture import flow_picture
from rolemesh_report.secrets import without_secrets
from rolemesh_report.style import STYLE
from rolemesh_report.text import clean
from rolemesh_report.time_pictures import LANES, bars, lanes_picture, legend

__all__ = ["REPORT_FILE", "report_of", "write_report"]

REPORT_FILE = "report.html"
PIECES = 500
"""Number of pieces of a lane; with more, those of each column become one."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(run_dir: Path, path: Path, result: Mapping[str, Any] | None = None, per_gpu_hour: float = 0.0) -> None:
    """Write the report of the run in `run_dir` to `path`, completely or not at all. Raises `OSError`.

    `result` is the content of ``result.json``, for a caller that has it before the file exists. `per_gpu_hour` is a
    price in any currency; 0 for none.
    """
    text = report_of(RunFacts(run_dir), result, per_gpu_hour)
    with replaced(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def report_of(facts: RunFacts, result: Mapping[str, Any] | None = None, per_gpu_hour: float = 0.0) -> str:
    """Return the report as HTML."""
    result = facts.result() if result is None else result
    summary, flow, stories = facts.summary(result), facts.flow(), facts.stories()
    since, until = facts.window(None)
    critical, uses = facts.critical(*facts.window()), facts.uses(since, until)
    edges = {each.edge: each for each in edge_uses(flow, uses)} if flow else {}
    lanes = facts.lanes(since, until, PIECES)
    path = {}
    for each in critical.stations if critical else ():
        if each.kind == "operator" and each.op >= 0:
            path["op", each.op] = each.share
        elif each.kind == "edge":
            path["edge", each.edge] = each.share
    more = f'<p class="dim">{len(lanes) - LANES} more ranks are not shown.</p>' if len(lanes) > LANES else ""
    of_roles = {phase_of(flow, role, name) for role, use in by_role(uses).items() for name in use.spent}
    of_ranks = {phase_of(flow, "", piece.phase) for pieces in lanes.values() for piece in pieces}
    shown = lanes_picture(flow, lanes, facts.marks(until), since, until)
    job_file = without_secrets(facts.job_file())
    parts = {
        "Summary": sections.summary_section(summary, result),
        "Advice": sections.advice_section(facts.advice()),
        "Flow": flow_picture(flow, path, edges) if flow else "",
        "Where the time went": bars(flow, by_role(uses)) + legend(of_roles) if lanes else "",
        "Critical path": sections.critical_section(critical),
        "Lanes": shown + legend(of_ranks) + more if lanes else "",
        "Cost": sections.cost_section(cost, per_gpu_hour) if (cost := facts.costs()) else "",
        "Metrics": sections.metrics_section({name: facts.points(name) for name in facts.metric_names()}),
        "Failures and recoveries": sections.failures_section(stories, summary),
        "Placement": sections.placement_section(facts.plan()),
        "Versions": sections.versions_section(result),
        "Job file": f"<pre>{clean(job_file, 100_000)}</pre>" if job_file else "",
    }
    return _page(summary.name, {title: part for title, part in parts.items() if part})


def _page(name: str, parts: Mapping[str, str]) -> str:
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S UTC}"
    links = "".join(f'<a href="#s{at}">{title}</a>' for at, title in enumerate(parts))
    body = "".join(
        f'<section id="s{at}"><h2>{title}</h2>{part}</section>' for at, (title, part) in enumerate(parts.items())
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{clean(name)}: report</title><style>{STYLE}</style></head><body>"
        f'<h1>{clean(name)}</h1><p class="dim">Report of a run, made {made}.</p>'
        f"<nav>{links}</nav>{body}</body></html>\n"
    )
