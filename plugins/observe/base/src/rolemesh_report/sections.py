"""The sections of a report, each from the facts that it shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rolemesh_facts.advice import Advice
from rolemesh_facts.cost import COST, Cost, price_of
from rolemesh_facts.critical import Critical
from rolemesh_facts.labels import GOODPUT
from rolemesh_facts.overview import by_importance
from rolemesh_facts.recoveries import Story
from rolemesh_facts.run import Summary
from rolemesh_facts.series import Points
from rolemesh_report.curves import curve
from rolemesh_report.text import clean, prose, seconds, share, table

__all__ = [
    "advice_section",
    "cost_section",
    "critical_section",
    "failures_section",
    "metrics_section",
    "placement_section",
]
__all__ += ["summary_section", "versions_section"]

CURVES = 200
STORIES = 100
STATIONS = 25
NO_RESULT = "no result: it runs, or it was killed"


def summary_section(summary: Summary, result: Mapping[str, Any]) -> str:
    """Return state, steps, time, goodput, and where the rest was lost."""
    state = summary.state if result else NO_RESULT
    steps = f"{summary.step + 1}" + (f" of {summary.steps}" if summary.steps else "")
    wall = result.get("wall_s")
    cards = [("state", state), ("steps", steps)]
    if isinstance(wall, int | float):
        cards.append(("time", seconds(wall)))
    if summary.goodput is not None:
        cards.append(("goodput", share(summary.goodput)))
    cards.append(("ranks", ", ".join(f"{role} {size}" for role, size in summary.roles.items()) or "unknown"))
    cards.append(("recoveries", str(len(_list(result, "recoveries"))) if result else "see below"))
    if summary.began:
        cards.append(("began", _time(summary.began)))
    parts = "".join(
        f'<div><span class="dim">{clean(name)}</span><b>{clean(text, 200)}</b></div>' for name, text in cards
    )
    told = f'<p class="note">{prose(summary.message)}</p>' if summary.message else ""
    return f'<div class="cards">{parts}</div>{told}{_lost(result)}'


def _lost(result: Mapping[str, Any]) -> str:
    goodput = result.get("goodput")
    lost = goodput.get("lost_s") if isinstance(goodput, dict) else None
    if not isinstance(lost, dict):
        return ""
    told = [f"{name} {seconds(value)}" for name, value in lost.items() if isinstance(value, int | float) and value > 0]
    return f'<p class="dim">Goodput is {clean(GOODPUT)}. Lost: {clean(", ".join(told))}.</p>' if told else ""


def cost_section(found: Sequence[Cost], per_gpu_hour: float) -> str:
    """Return the hours of each role, what of them was lost and waited, and their price."""
    rows = [
        (each.role, f"{each.rank_h:.3g}", f"{each.gpu_h:.3g}", share(each.lost),
         "" if each.waiting is None else share(each.waiting),
         *((f"{each.gpu_h * per_gpu_hour:,.2f}",) if per_gpu_hour else ()))
        for each in found
    ]  # fmt: skip
    heads = "role", "rank-hours", "GPU-hours", "lost to failures", "waiting", *(("price",) if per_gpu_hour else ())
    total = f"<p>{price_of(found, per_gpu_hour):,.2f} at {per_gpu_hour:g} per GPU-hour.</p>" if per_gpu_hour else ""
    return f'<p class="dim">{clean(COST)}</p>' + table(heads, rows, range(1, len(heads))) + total


def advice_section(found: Iterable[Advice]) -> str:
    """Return what the rules found."""
    notes = [
        f'<div class="note"><b>{prose(each.title)}</b>: {prose(each.why)}.<br>Try: {prose(each.remedy)}.</div>'
        for each in found
    ]
    return "".join(notes) or "<p>The rules found nothing to improve.</p>"


def critical_section(critical: Critical | None) -> str:
    """Return the stations of the critical path."""
    if critical is None or not critical.stations:
        return "<p>There is no record of the time of ranks.</p>"
    rows = [(each.name, each.kind, share(each.share)) for each in critical.stations[:STATIONS] if each.share >= 0.0005]
    wall = seconds((critical.until - critical.since) / 1e6)
    told = f"The last steps, {wall} together. A faster station makes the job faster by at most its share."
    return f'<p class="dim">{clean(told)}</p>' + table(("station", "kind", "share"), rows, (2,))


def metrics_section(found: Mapping[str, Points]) -> str:
    """Return a curve of each metric, the most important ones first."""
    if not found:
        return "<p>No metric was reported.</p>"
    shown = [(name, found[name]) for name in by_importance(found)[:CURVES]]
    more = f"<p>{len(found) - CURVES} more metrics are not shown.</p>" if len(found) > CURVES else ""
    return f'<div class="curves">{"".join(curve(name, points) for name, points in shown)}</div>{more}'


def failures_section(found: Sequence[Story], summary: Summary) -> str:
    """Return each recovery."""
    if not found and summary.state not in ("done", "began"):
        return f"<p>The events tell of no failure. The job is {clean(summary.state)}: {prose(summary.message)}</p>"
    if not found:
        return "<p>Nothing failed.</p>"
    shown = found[:STORIES]
    laters = [
        next((each.number for each in found[at:] if each.number and each.failures), 0)
        for at in range(1, len(shown) + 1)
    ]
    parts = [_story(story, later) for story, later in zip(shown, laters, strict=True)]
    more = f"<p>{len(found) - STORIES} more are in events.jsonl.</p>" if len(found) > STORIES else ""
    return "".join(parts) + more


def _story(story: Story, later: int) -> str:
    """Return a recovery; `later` is the number of the next one after a failure, 0 for none."""
    title = f"Recovery {story.number}, {_time(story.began)}" if story.number else f"Failure, {_time(story.began)}"
    lines = [("level", story.level and f"{story.level}: {story.reason}"), ("restarted", ", ".join(story.restarted))]
    lines.append(("goes on at", ", ".join(f"{name} step {step}" for name, step in story.resume)))
    lines.append(("state from", story.source))
    lines.append(("ranks ready after", seconds(story.ready_s)))
    missed = f"replaced by recovery {later}" if later else "not caught up"
    lines.append(("caught up after", seconds(story.regained_s) or (missed if story.number else "")))
    body = "".join(f"<tr><td>{clean(name)}</td><td>{clean(text)}</td></tr>" for name, text in lines if text)
    failed = "".join(f"<p>{clean(_failure(each))}</p>{_pre(each)}" for each in story.failures)
    trail = f"<pre>{clean(chr(10).join(story.trail))}</pre>" if story.trail else ""
    return f"<h3>{clean(title)}</h3>{failed}<table>{body}</table>{trail}"


def _failure(failure: Mapping[str, Any]) -> str:
    where = f"{failure.get('role', '?')}/{failure.get('rank', '?')} on {failure.get('node', '?')}"
    step = failure.get("step")
    at = f", step {step}" if isinstance(step, int) and step >= 0 else ""
    operator = f", {failure['operator']}" if failure.get("operator") else ""
    return f"{where}{operator}{at}: {failure.get('message') or failure.get('text') or failure.get('cause', 'failed')}"


def _pre(failure: Mapping[str, Any]) -> str:
    return "".join(
        f"<pre>{clean(failure[key])}</pre>" for key in ("traceback", "stacks", "log_tail") if failure.get(key)
    )


def placement_section(plan: Mapping[str, Any]) -> str:
    """Return the present place of each rank, or the last one."""
    ranks = [each for each in _list(plan, "ranks") if isinstance(each, dict)]
    if not ranks:
        return "<p>There is no plan.</p>"
    rows = [
        (f"{each.get('role')}/{each.get('rank')}", each.get("node", ""), each.get("slot", ""),
         ", ".join(map(str, _list(each, "gpus"))) or "none", each.get("rule", ""))
        for each in ranks[:2000]
    ]  # fmt: skip
    return table(("rank", "node", "slot", "GPUs", "rule"), rows, (2,))


def versions_section(result: Mapping[str, Any]) -> str:
    """Return the plugins of the job with their versions."""
    plugins = result.get("plugins")
    if not isinstance(plugins, dict):
        return "<p>They are in result.json, which the job writes when it ends.</p>"
    rows = [
        (name, each.get("kind", ""), each.get("distribution") or "the job's own", each.get("version", ""))
        for name, each in plugins.items()
        if isinstance(each, dict)
    ]
    return table(("plugin", "kind", "distribution", "version"), rows)


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    return found if isinstance(found, list) else []


def _time(seconds_: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds_, UTC):%Y-%m-%d %H:%M:%S UTC}"
    except (OverflowError, OSError, ValueError):
        return "?"
