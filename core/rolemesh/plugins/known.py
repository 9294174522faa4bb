"""The kinds of plugins, and names that messages need: what one of each is called, who offers a known one."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["DISTRIBUTIONS", "SINGULAR", "Kind"]

Kind: TypeAlias = Literal["workloads", "schedulers", "failover", "transports", "observers", "sources", "diagnosers"]
"""Plugins of a kind are the entry-point group ``rolemesh.<kind>``."""

SINGULAR: dict[Kind, str] = {
    "workloads": "workload",
    "schedulers": "scheduler",
    "failover": "failover level",
    "transports": "transport",
    "observers": "observer",
    "sources": "source",
    "diagnosers": "diagnoser",
}

DISTRIBUTIONS: dict[tuple[Kind, str], str] = {
    ("workloads", "fsdp"): "rolemesh-fsdp",
    ("workloads", "vllm"): "rolemesh-vllm",
    ("workloads", "reasoning-gym"): "rolemesh-reasoning-gym",
    ("workloads", "reasoning-gym-reward"): "rolemesh-reasoning-gym",
    ("schedulers", "collocation"): "rolemesh-collocation",
    ("observers", "plot"): "rolemesh-plot",
    ("failover", "process"): "rolemesh-failover-process",
    ("failover", "node"): "rolemesh-failover-node",
    ("failover", "job"): "rolemesh-failover-job",
}
