"""Names of a job on Ray. With the job's name, every process can find and remove everything of the job."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import placement_group_table, remove_placement_group

__all__ = [
    "NAMESPACE",
    "agent_actors",
    "agent_name",
    "master_actor",
    "master_name",
    "placement_groups",
    "remove_reservations",
    "reservation_name",
]

NAMESPACE = "rolemesh"


def master_name(job: str) -> str:
    """Return the name of the master's actor. Job names have no colon, so no name is the prefix of another job's."""
    return f"rolemesh-master-{job}"


def agent_name(job: str, agent: str, incarnation: int) -> str:
    """Return the name of the actor of one incarnation of an agent."""
    return f"rolemesh-agent-{job}:{agent}:{incarnation}"


def reservation_name(job: str, number: int) -> str:
    """Return the name of a placement group of the job."""
    return f"rolemesh-bundles-{job}:{number}"


def master_actor(job: str) -> Any:
    """Return a handle of the job's master, also while Ray restarts it; None if it is gone for good."""
    try:
        return ray.get_actor(master_name(job), namespace=NAMESPACE)
    except ValueError:
        return None


def agent_actors(job: str) -> dict[tuple[str, int], Any]:
    """Return handles of the job's agents by (agent, incarnation)."""
    found = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        head, *rest = entry["name"].split(":")
        if entry["namespace"] == NAMESPACE and head == f"rolemesh-agent-{job}" and len(rest) == 2:
            try:
                found[rest[0], int(rest[1])] = ray.get_actor(entry["name"], namespace=NAMESPACE)
            except ValueError:  # It has ended since it was listed.
                continue
    return found


def placement_groups(job: str) -> dict[str, dict[str, Any]]:
    """Return the job's placement groups by name, as Ray describes them."""
    tables = placement_group_table().values()
    return {
        table["name"]: table
        for table in tables
        if table["name"].startswith(reservation_name(job, 0)[:-1]) and table["state"] != "REMOVED"
    }


def remove_reservations(job: str) -> None:
    """Remove all reservations of the job."""
    for name in placement_groups(job):
        try:
            remove_placement_group(ray.util.get_placement_group(name))
        except ValueError:
            continue
