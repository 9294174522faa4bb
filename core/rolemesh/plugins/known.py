"""Names that messages need: what one plugin of each kind is called, and which distribution offers a known plugin."""

from __future__ import annotations

from rolemesh.spec.model import Kind

__all__ = ["DISTRIBUTIONS", "SINGULAR"]

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
