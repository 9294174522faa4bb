"""What a person who watches a job is told of its events, in a sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolemesh.api.failures import Failure, describe
from rolemesh.api.observer import Event

__all__ = ["sentence"]


def sentence(event: Event) -> str | None:
    """None for what a person need not be told at once."""
    data = event.data
    match event.kind:
        case "failure":
            return f"failure: {describe(msgspec.convert(data['failure'], Failure))}"
        case "injected":
            return f"rehearsal: {data['kind']} {data['target']}"
        case "recovery_planned":
            restart = ", ".join(f"{role}/{rank}" for role, rank in data["plan"]["restart"])
            delay = data["plan"].get("delay_s", 0.0)
            waits = f"waiting {delay:.3g} s before attempt {data['attempt']}, " if delay else ""
            sizes = f"; then the job has {_sizes(resize)}" if (resize := data["plan"].get("resize")) else ""
            why = f" ({'; '.join(reasons)})" if (reasons := _reasons(data)) else ""
            what = f"restarting {restart}{sizes}{why}"
            return f"recovery {data['number']} by level {data['plan']['level']}: {waits}{what}"
        case "recovered":
            return (
                f"recovery {data['number']}: {', '.join(data['restarted'])} ready again after {data['seconds']:.2f} s"
            )
        case "recovery_failed":
            return f"recovery {data['number']} by level {data['level']} failed: {data['why']}"
        case "job_finishing":
            return f"the job is to finish: {data['reason']}"
        case "stop_point":
            return _stop_point(data)
        case "resize_asked":
            return f"resize {data['number']} to {_sizes(data['sizes'])}: {data['reason']}"
        case "resized":
            return f"resized after step {data['step']}: {_sizes(data['sizes'])}, within {data['seconds']:.2f} s"
        case "resize_refused":
            return f"resize {data['number']} is given up: {data['why']}"
        case "rolled_back":
            where = f"after step {data['step']}" if data["step"] >= 0 else "from the beginning"
            return f"the whole job goes on {where}; up to {data['lost_steps']} steps are run again"
        case "waiting_for_nodes":
            return f"waiting up to {data['wait_s']:g} s for a place: {data['missing']}"
        case "agent_died":
            return (
                f"agent {data['agent']} on node {data['node']} is gone ({data['why']}); the next one adopts its ranks"
            )
        case "drain_asked":
            within = f" within {data['notice_s']:g} s" if data.get("notice_s") else ""
            return f"node {data['node'][:12]} is drained{within}: {data['reason']}"
        case "drain_waiting":
            return f"node {_nodes(data['nodes'])} keeps its ranks for now: {data['missing']}"
        case "drained":
            return f"node {data['node'][:12]} has no ranks any more, {data['seconds']:.2f} s after it was asked for"
        case "drain_over":
            return f"node {data['node'][:12]} is not drained any more: {data['why']}"
        case "hang":
            return f"hang: {data['text']}" + (f"\n{data['stacks']}" if data["stacks"] else "")
        case "slow_operator":
            who = f"{data['role']}/{data['rank']} in {data['operator']} at step {data['step']}"
            return (
                f"warning: {who} took {data['seconds']:.0f} s, longer than hang.after_s, and came through; it is "
                f"allowed {data['allowed_s']:g} s from now on: set hang.after_s above that"
            )
        case "node_checked" if data.get("unfit"):
            return f"node {data['node'][:12]} is left out: {data['unfit']}"
        case "straggler":
            return f"straggler: {data['message']}"
        case "snapshot_warning" | "snapshot_damaged":
            return f"warning: {data['message']}"
        case "snapshot_warning_over":
            return f"snapshots of agent {data['agent']} are persisted again"
        case "environment":
            return f"node {data['node'][:12]}: {data['message']}"
        case "connections_refused":
            return f"warning: node {data['node']} has refused {data['count']} connections that had not the job's key"
        case "master_recovered":
            return f"the master was started again (epoch {data['epoch']})"
        case "ladder_exhausted":
            why = "no failover level is left" if len(data["trail"]) > 1 else "the job gives up"
            why = f"the failover level {by!r} ends the job" if (by := data.get("ended_by")) else why
            return f"{why}:\n" + "\n".join(f"  {line}" for line in data["trail"])
        case "job_stopping" if data.get("status") == "interrupted":
            return f"stopping: {data.get('message', '')}"
    return None


def _reasons(planned: Mapping[str, Any]) -> list[str]:
    """The diagnosers' reasons for a recovery that no failure's text has, and the level's reason for other resources."""
    failures = [text.lower() for text in planned.get("failures", ())]
    known = dict.fromkeys(verdict["reason"] for verdict in planned.get("verdicts", ()))
    reasons = [reason for reason in known if not any(reason.lower() in text for text in failures)]
    return [*reasons, planned["plan"]["reason"]] if planned["plan"].get("resources") else reasons


def _stop_point(data: Mapping[str, Any]) -> str:
    match data["then"]:
        case "end":
            return f"the job ends with step {data['step']}"
        case "relayout":
            return f"all ranks come to step {data['step']}; then roles get other numbers of ranks"
        case "move":
            return f"all ranks come to step {data['step']}; then those of node {_nodes(data['nodes'])} leave"
        case _:
            return f"all ranks go on, and none leaves its node: {data['reason']}"


def _nodes(nodes: Sequence[str]) -> str:
    return ", ".join(node[:12] for node in nodes)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {size}" for role, size in sizes.items())
