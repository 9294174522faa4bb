"""Each value of a job file is in at most three structs of the engine, in the start of each process that reads it.

A test changes one value, and compares the starts of the job's processes with those of the unchanged job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.job.prepared import prepare
from rolemesh.job_file.model import JobSpec, Resources, RoleSpec, RuntimeEnv
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.bundle import bundle_job
from rolemesh_durable.options import DurableOptions
from rolemesh_durable.protocol.job import JobConfig
from rolemesh_durable.protocol.master_config import MasterConfig, agent_start
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.starts import AgentConfig, RankStart, for_rank

MOST = 3
"""Maximum number of the engine's structs that a value is in, from the start of a process down to the value."""
JOB = """
name: j
flow: flow.py:flow
steps: 10
roles:
  a: {use: 'work.py:Work', options: {lr: 1.0}, world_size: {min: 1, max: 4, start: 2}}
  b: {use: 'work.py:Work'}
failover: [{use: process}, {use: job}]
plugins:
  checks: [{use: 'work.py:Look'}]
  scalers: [{use: 'work.py:Scale'}]
"""
FLOW = "import rolemesh\n@rolemesh.flow\ndef flow(job, rows: int = 1):\n    job.a.run()\n    job.b.run()\n"
WORK = """
import rolemesh
from pydantic import BaseModel
from rolemesh_durable.checks import Check
from rolemesh_durable.scalers import Scaler
from rolemesh_dataplane.transports import Transport
class Work(rolemesh.Workload):
    class Options(BaseModel):
        lr: float = 0.0
    @rolemesh.operator()
    def run(self) -> None: ...
    def snapshot(self) -> dict: return {}
    def restore(self, state) -> None: ...
class Wire(Transport):
    reach = "network"
class Look(Check):
    def measure(self, node): return {}
class Scale(Scaler):
    def decide(self, load): return None
class Watch(rolemesh.Observer):
    class Options(BaseModel):
        loud: bool = False
"""
CLUSTER = ClusterView((NodeView("n0", cpu=8.0, gpu=2.0, custom={"memory_gb": 64.0, "ssd": 4.0}),))
A = "roles.a"
OURS = "engine.options"
CHANGES: Mapping[str, tuple[str, str]] = {
    "name": ("name=other", "master.job.name"),
    "steps": ("steps=20", "rank.job.steps"),
    "until": ("until={max_s: 5}", "master.until[max_s]"),
    "seed": ("seed=3", "rank.job.seed"),
    "roles.use": ("roles.a.use=work.py:Other", "rank.job.roles[a].record[target]"),
    "roles.options": ("roles.a.options.lr=2.0", "rank.job.roles[a].options[lr]"),
    "roles.world_size": ("roles.a.world_size.start=1", "rank.launch.world_size"),
    "roles.resources.cpu": (f"{A}.resources.cpu=2", "rank.launch.cpus"),
    "roles.resources.gpu": (f"{A}.resources.gpu=1", "rank.launch.gpus[0]"),
    "roles.resources.memory_gb": (f"{A}.resources.memory_gb=3", "rank.launch.memory_gb"),
    "roles.resources.custom": (f"{A}.resources.custom.ssd=1", "master.resources[a][ssd]"),
    "roles.resources.most": (f"{A}.resources.most.cpu=4", "master.most[a][cpu]"),
    "roles.runtime_env.pip": (f"{A}.runtime_env.pip=[tiny]", "agent.job.environments[a].pip[0]"),
    "roles.runtime_env.env_vars": (f"{A}.runtime_env.env_vars.X=1", "agent.job.environments[a].env[X]"),
    "roles.runtime_env.working_dir": (f"{A}.runtime_env.working_dir=.", "agent.job.environments[a].working_dir"),
    "failover": ("failover=[{use: job}]", "master.ladder[0].record[name]"),
    "diagnosers": ("diagnosers=[{use: standard, options: {}}, {use: standard}]", "master.diagnosers[1].record[name]"),
    "placement": ("placement=[{use: collocation, options: {groups: [[a, b]]}}]", "master.strategies[0].record[name]"),
    "metrics": ("metrics.every=7", "master.metrics_every"),
    "observers": ("observers=[{use: 'work.py:Watch', options: {loud: true}}]", "master.observers[0].options[loud]"),
    "plugins": (
        "plugins.checks=[{use: 'work.py:Look', options: {timeout_s: 7}}]",
        "agent.job.checks[work.py:Look].options[timeout_s]",
    ),
    "grant": (f"{OURS}.grant=7", "master.grant"),
    "state": (f"{OURS}.state=sqlite:///x.db", "master.state"),
    "lease_s": (f"{OURS}.lease_s=70", "agent.job.lease_s"),
    "start_timeout_s": (f"{OURS}.start_timeout_s=7", "master.start_timeout_s"),
    "stop_grace_s": (f"{OURS}.stop_grace_s=7", "master.stop_grace_s"),
    "hang.after_s": (f"{OURS}.hang.after_s=7", "master.hang_after_s"),
    "snapshots.enabled": (f"{OURS}.snapshots.enabled=false", "rank.job.snapshots.enabled"),
    "snapshots.every": (f"{OURS}.snapshots.every=7", "rank.job.snapshots.every"),
    "snapshots.persist_every": (f"{OURS}.snapshots.persist_every=7", "rank.job.snapshots.persist_every"),
    "snapshots.keep": (f"{OURS}.snapshots.keep=7", "rank.job.snapshots.keep"),
    "snapshots.replicas": (f"{OURS}.snapshots.replicas=1", "rank.job.snapshots.replicas"),
    "transports.local": (f"{OURS}.transports.local=tcp", "rank.job.transports[a][local].record[name]"),
    "transports.remote": (f"{OURS}.transports.remote=work.py:Wire", "rank.job.transports[a][remote].record[name]"),
    "retention.max_bytes": (f"{OURS}.retention.max_bytes=7000000", "rank.job.retention_bytes"),
}
"""A change of each value that the engine reads from the start of a process, and a place of the value in a start."""
ELSEWHERE = {
    "flow": "the kernel traces it",
    "params": "the kernel traces the flow with them",
    "edges": "the kernel puts them into the graph and the request",
    "transports.weights": "the flow has no edge of tensors; tests/unit/engine/extensions/edges tests it",
    "transports.each": "a start has the numbers of the edges; tests/e2e/test_edge_transports.py follows the values",
    "engine": "the kernel selects the engine; its options have entries of their own",
    "priority": "the driver reads it while it waits for resources",
    "room_wait_s": "the driver reads it while it waits for resources",
}
"""Values that no start contains, and their readers."""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The keys of a model, with those of its sections."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner.__module__.startswith("rolemesh_durable"):
            yield from keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def known() -> set[str]:
    """Every key of a job file that is not a plugin's own."""
    sections = {"resources": Resources, "runtime_env": RuntimeEnv}
    role = {key for key in RoleSpec.model_fields if key not in sections}
    role |= {f"{name}.{key}" for name, model in sections.items() for key in model.model_fields}
    return {*keys(DurableOptions), *JobSpec.model_fields, *(f"roles.{key}" for key in role)} - {"roles"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.yaml").write_text(JOB)
    (folder / "flow.py").write_text(FLOW)
    (folder / "work.py").write_text(WORK + "class Other(Work): ...\n")
    return folder


def starts(folder: Path, *changes: str) -> dict[str, Any]:
    """The starts of a job's master, its agent and its first rank."""
    elastic = prepare(folder / "job.yaml", changes)
    prepared = elastic.fitted(CLUSTER)
    plan = prepared.plan(CLUSTER)
    run = {"run_dir": str(folder / "run"), "backend": "local", "may_move": True}
    config = bundle_job(prepared, plan, CLUSTER, ranges=elastic.elastic, **run)
    same = msgspec.structs.replace(config.job, keys=TransportKeys("", "", "", ""), job_id="")
    config = msgspec.structs.replace(config, job=same)
    place = config.places[0]
    launch = config.launches[place.agent][0]
    agent = msgspec.msgpack.decode(agent_start(config, place, 0, "h").config, type=AgentConfig)
    rank = RankStart(launch, for_rank(config.job, launch), "n0", "h", "", "", "", "", "")
    return {"master": config, "agent": agent, "rank": rank}


def leaves(value: Any, path: str, structs: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Each value below `value`: its path, the engine's structs on the path, and itself."""
    if isinstance(value, msgspec.Struct) and type(value).__module__.startswith("rolemesh_durable"):
        inside = (*structs, type(value).__name__)
        for name in value.__struct_fields__:
            yield from leaves(getattr(value, name), f"{path}.{name}", inside)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from leaves(each, f"{path}[{name}]", structs)
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from leaves(each, f"{path}[{index}]", structs)
    else:
        yield path, structs, value


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The paths of the values that differ, with the structs on each path."""
    found: dict[str, tuple[str, ...]] = {}
    for process, start in before.items():
        old = {path: (structs, repr(value)) for path, structs, value in leaves(start, process, ())}
        new = {path: (structs, repr(value)) for path, structs, value in leaves(after[process], process, ())}
        found |= {path: (old.get(path) or new[path])[0] for path in old | new if old.get(path) != new.get(path)}
    return found


def test_each_key_of_a_job_file_is_followed() -> None:
    assert known() == set(CHANGES) | set(ELSEWHERE)


def test_each_value_is_in_at_most_three_structs(folder: Path) -> None:
    every = [change for change, _ in CHANGES.values()]
    found = changed(starts(folder), starts(folder, *every))
    assert {key: path for key, (_, path) in CHANGES.items() if path not in found} == {}
    assert {path: structs for path, structs in found.items() if len(structs) > MOST} == {}


def test_no_value_is_in_two_of_the_structs() -> None:
    fields = [name for struct in (JobConfig, MasterConfig, RankLaunch) for name in struct.__struct_fields__]
    of_each_start = {"origin", "origin_step"}
    roles_and_flag = {"collective"}
    assert {name for name in fields if fields.count(name) > 1} == of_each_start | roles_and_flag


@pytest.mark.parametrize(("checks", "warm"), [("[{use: 'work.py:Look'}]", ()), ("[]", ("a", "b"))])
def test_an_agent_that_is_to_be_checked_starts_no_zygote_ahead(
    folder: Path, checks: str, warm: tuple[str, ...]
) -> None:
    assert starts(folder, f"plugins.checks={checks}")["agent"].warm == warm
