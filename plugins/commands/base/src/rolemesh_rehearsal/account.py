"""The report of a rehearsal: failures, recoveries, goodput, and whether the final states are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolemesh_rehearsal.schedule import Fault

__all__ = ["account", "differences", "work"]


def account(injected: Sequence[Fault], asked: int, result: Mapping[str, Any], not_hit: Sequence[str] = ()) -> str:
    """Return a few lines for the user: the failures that took effect, out of those `asked` for, and what was `not_hit`.
    `result` is the job's result."""
    count = f"{len(injected)}" if len(injected) == asked else f"{len(injected)} of {asked}"
    those = ": " + ", ".join(f"{f.kind} {f.target}" for f in injected) if injected else ""
    early = len(injected) < asked and result.get("status", "done") != "done"
    why = f"; the job has ended before the others: {result['status']}" if early else ""
    lines = [f"rehearsal: {count} failure{'s' * (asked != 1)} injected{those}{why}"]
    lines += [f"  not hit: {line}" for line in not_hit]
    for one in result.get("recoveries", ()):
        seconds = f"{one['seconds']:.2f} s" if one["seconds"] is not None else "not finished"
        regained = f", {one['regained_s']:.2f} s to be where they had been" if one["regained_s"] is not None else ""
        restarted = ", ".join(one["restarted"])
        lines.append(
            f"  {one['level']:8} {'+'.join(one['causes']):12} {one['outcome'] or 'unfinished':10} {seconds}{regained}; "
            f"restarted {restarted}"
        )
    goodput = result.get("goodput") or {}
    if goodput.get("share") is not None:
        lost = ", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in goodput["lost_s"].items())
        lines.append(f"  goodput {goodput['share']:.1%} of {result['wall_s']:.1f} s; lost: {lost}")
        lines.append(f"  without a master for {goodput['master_down_s']:.2f} s in all, in which ranks went on")
    return "\n".join(lines)


def work(disturbed: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Return for each called role how many of its services' calls ran in two results. Calls that ran again count again.

    An example: ``calls of rollout that ran: 392, 1.04 × undisturbed (377)``.
    """
    found = []
    for role, most in undisturbed.get("calls", {}).items():
        ran = disturbed.get("calls", {}).get(role, 0)
        ratio = f", {ran / most:.2f} × undisturbed ({most})" if most else ""
        found.append(f"calls of {role} that ran: {ran}{ratio}")
    return found


def differences(disturbed: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Return the roles whose final states differ between two results, and how the jobs ended if that differs."""
    found = []
    if disturbed["status"] != undisturbed["status"]:
        found.append(f"one ended {disturbed['status']}, the other {undisturbed['status']}")
    theirs = undisturbed["state_sha256"]
    found += [
        f"role {role}: {digest} with failures, {theirs.get(role)} without"
        for role, digest in disturbed["state_sha256"].items()
        if digest != theirs.get(role)
    ]
    return found
