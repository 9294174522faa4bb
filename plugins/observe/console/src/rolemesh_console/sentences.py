"""Sentences about the events of a job for the user: one per kind of event that matters at once.

The kinds are those of the engines' journals. An engine may have further kinds, for which `sentence` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from rolemesh.api.failures import Failure, describe
from rolemesh.api.observer import Event

__all__ = ["described", "sentence"]

_Data: TypeAlias = Mapping[str, Any]
_Sentence: TypeAlias = str | Callable[[_Data], str | None]
_NODE_CHARACTERS = 12
"""Number of characters of a node's name that are shown. On Ray it has 56, and the first ones are enough to tell nodes
apart."""


def sentence(event: Event) -> str | None:
    """Return the event as a sentence; None for an event that can wait, for an unknown kind, and for data that another
    version wrote or that is damaged."""
    return _told(_SENTENCES, event)


def described(event: Event) -> str | None:
    """Return the event as a sentence, also if it can wait; None for an unknown kind and for unreadable data."""
    return _told(_SENTENCES, event) or _told(_QUIET, event)


def _told(known: Mapping[str, _Sentence], event: Event) -> str | None:
    told = known.get(event.kind)
    try:
        return told.format_map(event.data) if isinstance(told, str) else told(event.data) if told is not None else None
    except Exception:
        return None


# ------------------------------------------------------------------------------------------------ failures, recoveries


def _failure(data: _Data) -> str:
    return f"failure: {describe(msgspec.convert(data['failure'], Failure))}"


def _hang(data: _Data) -> str:
    return f"hang: {data['text']}" + (f"\n{data['stacks']}" if data["stacks"] else "")


def _recovery_planned(data: _Data) -> str:
    plan = data["plan"]
    delay = plan.get("delay_s", 0.0)
    waits = f"waiting {delay:.3g} s before attempt {data['attempt']}, " if delay else ""
    restart = ", ".join(f"{role}/{rank}" for role, rank in plan["restart"])
    sizes = f"; then the job has {_sizes(resize)}" if (resize := plan.get("resize")) else ""
    why = f" ({'; '.join(reasons)})" if (reasons := _reasons(data)) else ""
    return f"recovery {data['number']} by level {plan['level']}: {waits}restarting {restart}{sizes}{why}"


def _reasons(planned: _Data) -> list[str]:
    """Return the diagnosers' reasons for a recovery that are not in a failure's text, and the level's reason for other
    resources."""
    failures = [text.lower() for text in planned.get("failures", ())]
    known = dict.fromkeys(verdict["reason"] for verdict in planned.get("verdicts", ()))
    reasons = [reason for reason in known if not any(reason.lower() in text for text in failures)]
    return [*reasons, planned["plan"]["reason"]] if planned["plan"].get("resources") else reasons


def _recovered(data: _Data) -> str:
    return f"recovery {data['number']}: {', '.join(data['restarted'])} ready again after {data['seconds']:.2f} s"


def _rolled_back(data: _Data) -> str:
    where = f"after step {data['step']}" if data["step"] >= 0 else "from the beginning"
    return f"the whole job goes on {where}; up to {data['lost_steps']} steps are run again{_again(data)}"


def _replanned(data: _Data) -> str | None:
    moved = ", ".join(f"{move['role']}/{move['rank']}" for move in data["moves"])
    return f"{moved} start in other places{_again(data)}" if data.get("calls") else None


def _again(data: _Data) -> str:
    calls = ", ".join(data.get("calls", ()))
    return f"; calls that must not be repeated may be made again: {calls}" if calls else ""


def _ladder_exhausted(data: _Data) -> str:
    why = "no failover level is left" if len(data["trail"]) > 1 else "the job gives up"
    if by := data.get("ended_by"):
        why = f"the failover level {by!r} ends the job"
    return f"{why}:\n" + "\n".join(f"  {line}" for line in data["trail"])


# ----------------------------------------------------------------------------------------------------- resizing, nodes


def _stop_point(data: _Data) -> str:
    match data["then"]:
        case "end":
            return f"the job ends with step {data['step']}"
        case "relayout":
            return f"all ranks come to step {data['step']}; then roles get other numbers of ranks"
        case "move":
            return f"all ranks come to step {data['step']}; then those of {_nodes(data['nodes'])} leave"
    return f"all ranks go on, and none leaves its node: {data['reason']}"


def _resize_asked(data: _Data) -> str:
    return f"resize {data['number']} to {_sizes(data['sizes'])}: {data['reason']}"


def _resized(data: _Data) -> str:
    return f"resized after step {data['step']}: {_sizes(data['sizes'])}, within {data['seconds']:.2f} s"


def _drain_asked(data: _Data) -> str:
    within = f" within {data['notice_s']:g} s" if data.get("notice_s") else ""
    return f"{_nodes([data['node']])} is drained{within}: {data['reason']}"


def _drain_waiting(data: _Data) -> str:
    return f"{_nodes(data['nodes'])} keeps its ranks for now: {data['missing']}"


def _node_checked(data: _Data) -> str | None:
    return f"{_nodes([data['node']])} is left out: {data['unfit']}" if data.get("unfit") else None


def _nodes_banned(data: _Data) -> str | None:
    bans = ", ".join(f"{_nodes([node])} for {seconds:g} s" for node, seconds in data["nodes"].items())
    return f"level {data['level']} bans {bans}" if bans else None


def _job_started(data: _Data) -> str:
    ranks, agents = data["ranks"], len(data["agents"])
    return f"the job starts, with {ranks} rank{'s' * (ranks != 1)} and {agents} agent{'s' * (agents != 1)}"


def _recovery_launched(data: _Data) -> str:
    ranks = (f"{each['role']}/{each['rank']} from step {each['resume'] + 1}" for each in data["ranks"])
    return f"recovery {data['number']} starts {', '.join(ranks)}"


def _job_stopping(data: _Data) -> str | None:
    return f"stopping: {data.get('message', '')}" if data.get("status") == "interrupted" else None


def _nodes(names: Iterable[str]) -> str:
    return f"node {', '.join(name[:_NODE_CHARACTERS] for name in names)}"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {size}" for role, size in sizes.items())


_SLOW_OPERATOR = (
    "warning: {role}/{rank} in {operator} at step {step} took {seconds:.0f} s, longer than hang.after_s, and came "
    "through; it is allowed {allowed_s:g} s from now on: set hang.after_s above that"
)
_SENTENCES: dict[str, _Sentence] = {
    "ban_lifted": "node {node:.12} may have ranks again: {why}",
    "agent_died": "agent {agent} on node {node} is gone ({why}); the next one adopts its ranks",
    "connections_refused": "warning: node {node} has refused {count} connections that had not the job's key",
    "drain_asked": _drain_asked,
    "drain_over": "node {node:.12} is not drained any more: {why}",
    "drain_waiting": _drain_waiting,
    "drained": "node {node:.12} has no ranks any more, {seconds:.2f} s after it was asked for",
    "environment": "node {node:.12}: {message}",
    "failure": _failure,
    "hang": _hang,
    "injected": "rehearsal: {kind} {target}",
    "job_finishing": "the job is to finish: {reason}",
    "job_stopping": _job_stopping,
    "ladder_exhausted": _ladder_exhausted,
    "master_recovered": "the master was started again (epoch {epoch})",
    "lines_cut": "from step {step} on, a line of metrics covers {every} steps",
    "node_checked": _node_checked,
    "nodes_banned": _nodes_banned,
    "recovered": _recovered,
    "recovery_failed": "recovery {number} by level {level} failed: {why}",
    "recovery_planned": _recovery_planned,
    "replanned": _replanned,
    "resize_asked": _resize_asked,
    "resize_refused": "resize {number} is given up: {why}",
    "resized": _resized,
    "rolled_back": _rolled_back,
    "slow_operator": _SLOW_OPERATOR,
    "snapshot_damaged": "warning: {message}",
    "snapshot_warning": "warning: {message}",
    "snapshot_warning_over": "over on agent {agent}: {message}",
    "stop_point": _stop_point,
    "straggler": "straggler: {message}",
    "waiting_for_nodes": "waiting up to {wait_s:g} s for a place: {missing}",
}
"""Kind of event → sentence: a template filled with the event's data, or a function of the data."""
_QUIET: dict[str, _Sentence] = {
    "agent_left": "agent {agent} has left node {node:.12}: {why}",
    "agent_lost": "agent {agent} on node {node:.12} is lost with its ranks: {why}",
    "agent_started": "agent {agent} starts on node {node:.12}",
    "agent_stopped": "agent {agent} has ended",
    "agent_up": "agent {agent} runs on node {node:.12}, process {pid}",
    "child_killed": "rehearsal: process {pid} ({name}) of {target} is killed",
    "job_detached": "the driver has left the job to its master",
    "job_ended": "the job is {status}",
    "job_running": "every rank is ready, and the first step begins",
    "job_started": _job_started,
    "job_stopping": "the job stops: it is {status}",
    "layout_changed": "resize {number}: the ranks have come to the stop point, and go on with other numbers",
    "node_checked": "node {node:.12} is fit",
    "node_lost": "node {node:.12} is lost",
    "persisted": "the checkpoint after step {step} is on disk",
    "rank_done": "{role}/{rank} has done its last step, {finished}",
    "rank_ready": "{role}/{rank} is ready; its setup took {setup_s:.3g} s",
    "rank_up": "{role}/{rank} runs its setup on node {node:.12}, process {pid}",
    "recovery_launched": _recovery_launched,
    "regained": "recovery {number}: the restarted ranks are at the steps that they had reached before",
    "suspects_used": "recovery {number} uses nodes that it should avoid, because no other place is free: {missing}",
}
"""Sentences about events that can wait, as in `_SENTENCES`."""
