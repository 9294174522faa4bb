"""The API of a check, which measures a node before a job's ranks start there. It is a kind of plugin of this engine.

A job file lists checks under ``plugins.checks``. The agent of each node runs them, each in a process of its own, before
any rank starts; the master compares the results. A failed node counts as faulty hardware for the failover ladder: its
ranks go elsewhere, or the job's failure says why it does not start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

__all__ = ["KIND", "Check", "CheckOptions", "CheckedNode"]

KIND = Kind(
    "checks", "check", "rolemesh_durable.checks:Check", ("agent",), conformance="rolemesh_testing:CheckConformance"
)


class CheckOptions(BaseModel, extra="forbid"):
    """Requirements of a node. The options of a check are this class or derive from it."""

    at_least: dict[str, float] = Field(
        default_factory=dict, description="Minimum of each number; a node with less fails."
    )
    slower: float | None = Field(
        default=None,
        gt=1,
        description="A node fails if a number is this many times less than the median of the others; null: never.",
    )
    timeout_s: float = Field(default=60.0, gt=0, description="Maximum duration in seconds; a slower node fails.")


class CheckedNode(msgspec.Struct, frozen=True):
    """The node: its id, its address for other nodes, and the folders of the job there, on disk and in shared memory.

    `together` are the ids of the nodes, including this one, on which the same checks run at about the same time: all of
    them at the job's start; a node that ranks come to later is alone. Their processes can meet in `run_dir`, if the
    nodes share it. `attempt` is unique to them.
    """

    id: str
    host: str
    run_dir: str
    shm_dir: str
    together: tuple[str, ...] = ()
    attempt: str = ""


class Check(Plugin, ABC):
    """Base class of checks (entry-point group ``rolemesh.checks``)."""

    Options: ClassVar[type[BaseModel]] = CheckOptions

    @abstractmethod
    def measure(self, node: CheckedNode) -> dict[str, float]:
        """Return numbers by name, of which more is better. Called once, in a process that ends with it, while no rank
        runs.

        If it raises, or its process dies, its error or last output is the reason why the node fails.
        """
