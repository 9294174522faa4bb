"""The job that measures nodes: an idle rank on each node, which starts only after the node's checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rolemesh import Job, flow
from rolemesh.api.observer import Event
from rolemesh.runs.run import EVENTS_FILE

__all__ = ["MOST_NODES", "NodeResult", "found", "present", "probing"]

MOST_NODES = 4096
ROLE = "node"
LITTLE = 0.01
"""CPUs of an idle rank. It is so little that a node is measured even if another job uses almost all of it."""


@flow
def nodes(job):  # type: ignore[no-untyped-def]
    """Flow: the rank of every node is present."""
    job.node.present()


def present() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class NodeResult:
    """The result of a node: numbers by ``<check>.<name>``, and why the node is unfit, "" if it is not."""

    node: str
    values: dict[str, float]
    unfit: str

    def told(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {"node": self.node, "fit": not self.unfit, "unfit": self.unfit, "values": self.values}


def probing(
    checks: Sequence[str],
    name: str,
    *,
    gpus: float,
    slower: float | None,
    timeout_s: float,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> Job:
    """Return a job with one rank on each node that has room. `given`: further options, by check."""
    options: dict[str, Any] = {"timeout_s": timeout_s, **({"slower": slower} if slower else {})}
    uses = [{"use": check, "options": options | dict(given.get(check, {}))} for check in checks]
    spread = {"spread": {ROLE: {"over": "node", "most": 1}}}
    job = Job(name, steps=1, observers=[], plugins={"checks": uses})
    job.role(
        ROLE,
        use="function",
        world_size={"min": 1, "max": MOST_NODES},
        resources={"cpu": LITTLE, **({"gpu": gpus} if gpus else {})},
        options={"target": "rolemesh_checks.probe:present"},
    )
    return job.placement("separation", **spread).flow("rolemesh_checks.probe:nodes")


def found(run_dir: Path) -> list[NodeResult]:
    """Return the results of all nodes, ordered by name."""
    results: dict[str, NodeResult] = {}
    for line in (run_dir / EVENTS_FILE).read_bytes().splitlines():
        event = msgspec.json.decode(line, type=Event)
        if event.kind != "node_checked":
            continue
        values = {
            f"{measured['check']}.{number}": value
            for measured in event.data["measured"]
            for number, value in measured.get("values", {}).items()
        }
        results[event.data["node"]] = NodeResult(event.data["node"], values, event.data.get("unfit", ""))
    return [results[node] for node in sorted(results)]
