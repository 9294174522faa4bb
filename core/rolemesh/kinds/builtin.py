"""The kinds of plugins that the kernel knows by itself."""

from __future__ import annotations

from rolemesh.kinds.kind import Kind

__all__ = ["BUILTIN"]

BUILTIN = (
    Kind(
        "workloads",
        "workload",
        "rolemesh.api.workload:Workload",
        ("rank",),
        conformance="rolemesh_testing:WorkloadConformance",
        known={
            "fsdp": "rolemesh-fsdp",
            "vllm": "rolemesh-vllm",
            "reasoning-gym": "rolemesh-reasoning-gym",
            "reasoning-gym-reward": "rolemesh-reasoning-gym",
        },
    ),
    Kind(
        "schedulers",
        "scheduler",
        "rolemesh.api.scheduler:Scheduler",
        ("driver", "master"),
        hooks=("place", "replace"),
        required=("place",),
        job_key="placement",
        conformance="rolemesh_testing:SchedulerConformance",
        known={"collocation": "rolemesh-collocation"},
    ),
    Kind(
        "failover",
        "failover level",
        "rolemesh.api.failover:FailoverLevel",
        ("master",),
        hooks=("diagnose", "recover"),
        required=("recover",),
        job_key="failover",
        conformance="rolemesh_testing:FailoverConformance",
        known={name: f"rolemesh-failover-{name}" for name in ("process", "node", "job")},
    ),
    Kind(
        "diagnosers",
        "diagnoser",
        "rolemesh.api.diagnoser:Diagnoser",
        ("master",),
        hooks=("diagnose",),
        required=("diagnose",),
        job_key="diagnosers",
        conformance="rolemesh_testing:DiagnoserConformance",
    ),
    Kind(
        "observers",
        "observer",
        "rolemesh.api.observer:Observer",
        ("driver", "master"),
        hooks=("job_started", "event", "steps_finished", "status", "missed", "job_ended"),
        job_key="observers",
        conformance="rolemesh_testing:ObserverConformance",
        known={"console": "rolemesh-console", "plot": "rolemesh-plot"},
    ),
    Kind(
        "transports",
        "transport",
        "rolemesh.api.transport:Transport",
        ("rank",),
        conformance="rolemesh_testing:TransportConformance",
        known={"shm": "rolemesh-durable", "tcp": "rolemesh-durable"},
    ),
    Kind(
        "engines",
        "engine",
        "rolemesh.job.engine:Engine",
        ("driver",),
        conformance="rolemesh_testing:EngineConformance",
        known={"durable": "rolemesh-durable"},
    ),
    Kind(
        "backends",
        "backend",
        "rolemesh.api.backend:Backend",
        ("driver", "master", "agent"),
        conformance="rolemesh_testing:BackendConformance",
        known={"local": "rolemesh-local", "ray": "rolemesh-ray"},
    ),
    Kind(
        "stores",
        "store",
        "rolemesh.api.store:Store",
        ("driver", "master", "command line"),
        conformance="rolemesh_testing:StoreConformance",
        known={"sqlite": "rolemesh-durable", **dict.fromkeys(("postgresql", "mysql", "mariadb"), "rolemesh-sql")},
    ),
    Kind("commands", "command", "rolemesh.api.command:Command", ("command line",)),
)
