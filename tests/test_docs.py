"""The documents say what the code does: hooks, job-file keys, defaults, rooms, examples and links."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from rolemesh import (
    Batch,
    Budget,
    ClusterView,
    Failure,
    JobView,
    NodeView,
    PlacementPlan,
    PlacementRequest,
    RankContext,
    RankView,
    RoleRequest,
    Verdict,
    hookspecs,
)
from rolemesh.batch import Shard
from rolemesh.observer import RoleTimes, RunInfo, StepMetrics
from rolemesh.plugins.manager import hooks_of
from rolemesh.protocol.master import MasterMachine
from rolemesh.protocol.master.records import RankRecord, Recovery
from rolemesh.rehearsal.spec import TARGETS
from rolemesh.snapshots.memory import MemorySnapshots
from rolemesh.spec import load
from rolemesh.spec.model import JobSpec, Use

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/*/*.md", "plugins/*/*/README.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)


def defined(source: str, name: str) -> Any:
    """What `name` is after a documented block has run."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile(source, f"<{name} in the documents>", "exec"), namespace)
    return namespace[name]


# --------------------------------------------------------------------------------------------------------------- hooks


def hook_signatures() -> dict[str, str]:
    specs = {name: value for name, value in vars(hookspecs).items() if hasattr(value, "rolemesh_spec")}
    return {name: name + str(inspect.signature(value)).replace("'", "") for name, value in specs.items()}


def test_every_hook_is_documented_with_its_exact_signature_and_no_other_is() -> None:
    text = (ROOT / "docs/hooks.md").read_text()
    found = dict(re.findall(r"^### `(\w+)`\n\n```python\n(.*?)\n```", text, flags=re.MULTILINE | re.DOTALL))
    assert found == hook_signatures()


def test_the_strategy_in_the_document_about_placement_does_what_it_says() -> None:
    cls = defined(blocks("docs/placement.md", "python")[0], "OnePerNode")
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 1)))
    cluster = ClusterView((NodeView("x", cpu=4), NodeView("y", cpu=4)))
    plan = cls(cls.Options()).place(request=request, cluster=cluster, plan=PlacementPlan())
    assert sorted(plan.node_of("a", rank) for rank in (0, 1)) == ["x", "y"]
    assert len(plan.assignments) == 3
    assert cls(cls.Options()).place(request=request, cluster=cluster.without("y"), plan=PlacementPlan()).unplaced


def test_documented_placement_strategy_places_every_rank() -> None:
    cls = defined(blocks("docs/hooks.md", "python")[2], "OneNode")
    assert hooks_of(cls).keys() == {"place"}
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 1, cpu=0.5)))
    cluster = ClusterView((NodeView("n0"), NodeView("n1")))
    plan = cls(None).place(request, cluster, PlacementPlan())
    assert plan.placed() == {("a", 0), ("a", 1), ("b", 0)}
    assert plan.bundles() == {"n0": {"cpu": 2.5, "gpu": 0.0}}


def test_documented_diagnoser_blames_the_node_at_the_second_crash_there() -> None:
    cls = defined(next(b for b in blocks("docs/hooks.md", "python") if "OurCluster" in b), "OurCluster")
    assert hooks_of(cls).keys() == {"diagnose"}
    first, second = Failure("signal", "a", 0, "n0", signal=11), Failure("signal", "b", 1, "n0", signal=11)
    assert cls(None).diagnose(first, JobView("job", 1, 0, (), ())) is None
    verdict = cls(None).diagnose(second, JobView("job", 1, 0, (), (), failures=(first,)))
    assert verdict == Verdict("hardware", "2 segmentation faults on n0")


def test_documented_failover_level_restarts_the_whole_role() -> None:
    cls = defined(next(b for b in blocks("docs/hooks.md", "python") if "WholeRole" in b), "WholeRole")
    assert hooks_of(cls).keys() == {"recover"}
    ranks = tuple(RankView(role, rank, "n0", "running", 3, 0) for role, rank in [("a", 0), ("a", 1), ("b", 0)])
    view = JobView("job", 1, 2, ranks, ())
    assert cls(Budget()).recover(Failure("exit", "a", 1), view).restart == (("a", 0), ("a", 1))
    assert cls(Budget()).recover(Failure("node_lost", node="n0"), view) is None


def test_documented_observer_writes_a_line_per_step_with_a_reward(tmp_path: Path) -> None:
    cls = defined(blocks("docs/hooks.md", "python")[-1], "RewardCsv")
    observer = cls(None)
    observer.job_started(RunInfo("job", str(tmp_path), 2, {"a": 1}, ("a.run",)))
    lines = [
        StepMetrics(step, 1, 0.0, values, {}, {"a": RoleTimes()}) for step, values in [(0, {"reward": 0.5}), (1, {})]
    ]
    observer.steps_finished(tuple(lines))
    assert (tmp_path / "reward.csv").read_text() == "step,reward\n0,0.5\n"


# ----------------------------------------------------------------------------------------------------------- job files


def shown_type(annotation: Any) -> str:
    """A type as the table of job-file keys shows it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(shown_type(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is list:
        plural = "s" if arguments[0] is str else ""
        return f"list of {shown_type(arguments[0])}{plural}"
    if origin is dict:
        return f"mapping to {shown_type(arguments[1])}s"
    if hasattr(annotation, "__metadata__"):
        return shown_type(annotation.__origin__)
    if annotation is Use:
        return "`{use, options}`"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    names = {Any: "value", str: "string", int: "integer", float: "number", bool: "boolean", ByteSize: "byte size"}
    return names[annotation]


def shown_default(field: FieldInfo) -> str:
    """A default as the table shows it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, list) and value:
        return f"`[{', '.join(f'{{use: {use.use}}}' for use in value)}]`"
    return f"`{json.dumps(value)}`"


def key_rows(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, type, default) of every key that a job file may have, parents first."""
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        rows.append((prefix + name, shown_type(annotation), shown_default(field)))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            rows += key_rows(annotation, f"{prefix}{name}.")
        elif get_origin(annotation) is dict:
            inner = get_args(annotation)[1]
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                rows += key_rows(inner, f"{prefix}{name}.NAME.")
    return rows


def test_every_job_file_key_is_documented_with_its_type_and_default() -> None:
    text = (ROOT / "docs/job-file.md").read_text()
    documented = re.findall(r"^\| `([a-z_A-Z.]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text, flags=re.MULTILINE)
    assert sorted(documented) == sorted(key_rows(JobSpec))


@pytest.mark.parametrize("document", ["README.md", "docs/job-file.md", "docs/fault-tolerance.md"])
def test_documented_job_files_are_valid(document: str, tmp_path: Path) -> None:
    jobs = [block for block in blocks(document, "yaml") if block.startswith("name:")]
    assert jobs
    for number, block in enumerate(jobs):
        path = tmp_path / f"job{number}.yaml"
        path.write_text(block)
        load(path, environ={"MODEL": "/models/m", "DB_PASSWORD": "secret"})


def test_example_job_files_have_a_job_file_and_a_readme() -> None:
    folders = [path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert folders
    for folder in folders:
        assert (folder / "README.md").is_file(), folder
        assert yaml.safe_load((folder / "job.yaml").read_text())["name"] == folder.name


# ----------------------------------------------------------------------------------------------------------- workloads


def test_the_readme_plugin_scores_rows() -> None:
    cls = defined(next(b for b in blocks("README.md", "python") if "LengthReward" in b), "LengthReward")
    workload = cls()
    workload.setup(RankContext(options=cls.Options(target=4)))
    scored = workload.score(Batch({"text": ["1234", "12", "123456789"]}))
    np.testing.assert_array_equal(scored["reward"], np.float32([1.0, 0.5, 0.0]))
    assert cls.operators(cls.Options()).keys() == {"score"}


def test_the_tutorial_workload_continues_from_its_snapshot_as_if_nothing_had_happened() -> None:
    cls = defined(next(b for b in blocks("docs/write-a-workload.md", "python") if "class Shuffler" in b), "Shuffler")

    def fresh() -> Any:
        workload = cls()
        workload.setup(RankContext(options=cls.Options(path="unused", rows=2), seed=3))
        workload.lines = [f"line {i}" for i in range(5)]
        return workload

    def run(workload: Any, first: int, steps: int) -> list[list[str]]:
        taken = []
        for step in range(first, first + steps):
            workload.ctx.step = step
            taken.append(list(workload.next()["text"]))
        return taken

    undisturbed = run(fresh(), 0, 6)
    killed = fresh()
    before = run(killed, 0, 3)
    restarted = fresh()
    restarted.restore(killed.snapshot())
    assert before + run(restarted, 3, 3) == undisturbed
    assert sorted([line for step in undisturbed for line in step][:5]) == [f"line {i}" for i in range(5)]


# ------------------------------------------------------------------------------------------------------------ failures


def test_the_documented_lines_read_the_snapshot_of_two_ranks_without_rolemesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = tmp_path / "runs/sft/snapshots/step-59/trainer"
    role.mkdir(parents=True)
    whole = np.arange(12, dtype=np.float32).reshape(4, 3)
    for rank in range(2):
        memory = MemorySnapshots(tmp_path, "trainer", rank)
        block = Shard(whole[2 * rank : 2 * rank + 2], (4, 3), (2 * rank, 0))
        memory.write(59, {"model": {"weight": block}, "updates": 60}, log=0, persist=False)
        image = memory.image(59)
        assert image is not None
        assert image.path is not None
        (role / f"rank-{rank}-of-2.safetensors").write_bytes(image.path.read_bytes()[: image.size])
        memory.close()
    monkeypatch.chdir(tmp_path)
    weights = defined(blocks("docs/fault-tolerance.md", "python")[0], "weights")
    assert weights.keys() == {"model.weight"}
    np.testing.assert_array_equal(weights["model.weight"].numpy(), whole)


def test_the_drawn_state_machines_have_the_states_of_the_code() -> None:
    drawn = [
        {state for arrow in re.findall(r"(\w+) --> (\w+)", block.replace("[*]", "")) for state in arrow}
        for block in blocks("docs/fault-tolerance.md", "mermaid")
    ]
    phases = re.search(r"self\.phase: Literal\[(.*?)\]", inspect.getsource(MasterMachine))
    assert phases
    job = set(re.findall(r"\w+", phases[1]))
    recovery = set(get_args(get_type_hints(Recovery)["phase"]))
    rank = set(get_args(get_type_hints(RankRecord)["state"]))
    assert drawn == [job, recovery, rank]


def test_every_target_of_a_rehearsal_and_every_failover_level_is_in_its_table() -> None:
    text = (ROOT / "docs/fault-tolerance.md").read_text()
    table = text.partition("| target |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|\n", "|\n", table))) == set(TARGETS)
    levels = {path.name for path in (ROOT / "plugins/failover").iterdir() if (path / "pyproject.toml").is_file()}
    assert levels == set(re.findall(r"^\| \[`(\w+)`\]", text, flags=re.MULTILINE))


# --------------------------------------------------------------------------------------------------------- the project


def test_every_room_of_the_kernel_is_in_the_architecture_and_on_a_floor() -> None:
    kernel = ROOT / "core/rolemesh"
    rooms = {path.stem for path in kernel.glob("*.py") if path.stem != "__init__"}
    rooms |= {path.name for path in kernel.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    text = (ROOT / "docs/architecture.md").read_text()
    described = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, flags=re.MULTILINE))
    assert described == rooms


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in links if not (path.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(re.findall(r"^([a-z]+):.*## ", text, flags=re.MULTILINE))
