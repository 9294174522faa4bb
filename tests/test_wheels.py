"""The results of `make dist` are complete, have no leftovers of earlier builds, and work without the checkout."""

from __future__ import annotations

import json
import shutil
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from tests.installed import ROOT, Dist, Installed, build_wheel, sources

pytestmark = pytest.mark.slow

DISTRIBUTIONS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))]
PLUGINS = DISTRIBUTIONS[1:]
LIBRARIES = ("runtime", "torch", "training")
"""Distributions for authors of plugins. No job selects them."""


def pyproject(folder: Path) -> Any:
    """The `[project]` of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def packages(folder: Path) -> str:
    """Return the name of the folder that has a distribution's packages."""
    return "core" if folder == ROOT else "src"


def named(folder: Path) -> str:
    return str(pyproject(folder)["name"])


def metadata(wheel: Path) -> Metadata:
    """A wheel's metadata. Raises where it is not as the standard says."""
    with zipfile.ZipFile(wheel) as opened:
        (path,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return Metadata.from_email(opened.read(path), validate=True)


def entry_points(wheel: Path) -> dict[str, dict[str, str]]:
    """Group → name → target."""
    parser = ConfigParser(delimiters=("=",))
    with zipfile.ZipFile(wheel) as opened:
        for path in (name for name in opened.namelist() if name.endswith(".dist-info/entry_points.txt")):
            parser.read_string(opened.read(path).decode())
    return {group: dict(parser[group]) for group in parser.sections()}


def test_every_distribution_has_a_wheel_and_an_sdist_and_the_build_leaves_no_other_file(dist: Dist) -> None:
    made = sorted(path.name for path in dist.folder.iterdir())
    stems = [f"{named(folder).replace('-', '_')}-{pyproject(folder)['version']}" for folder in DISTRIBUTIONS]
    assert made == sorted(f"{stem}{end}" for stem in stems for end in ("-py3-none-any.whl", ".tar.gz"))
    assert set(map(str, dist.checkout.rglob("*"))) == dist.before


def test_each_wheel_has_the_sources_types_license_and_nothing_else(dist: Dist) -> None:
    for folder in DISTRIBUTIONS:
        wheel = dist.wheel(named(folder))
        info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
        about = {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "top_level.txt"}
        about |= {"entry_points.txt"} if "entry-points" in pyproject(folder) else set()
        with zipfile.ZipFile(wheel) as opened:
            found = set(opened.namelist())
            assert opened.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert found == sources(folder, packages(folder)) | {f"{info}/{name}" for name in about}
        assert {path.partition("/")[0] for path in found} == {info, *(p.name for p in top(folder))}
        assert all(f"{package.name}/py.typed" in found for package in top(folder))


def top(folder: Path) -> list[Path]:
    """The packages of a distribution."""
    return [path.parent for path in (folder / packages(folder)).glob("*/__init__.py")]


def test_the_kernels_wheel_does_not_grow_unnoticed(dist: Dist) -> None:
    size = dist.wheel("rolemesh").stat().st_size
    assert size < 200_000, f"{size:,} bytes: what made it larger is a plugin"


def test_each_sdist_has_what_a_build_needs_and_neither_tests_nor_other_distributions(dist: Dist) -> None:
    for folder in DISTRIBUTIONS:
        with tarfile.open(dist.sdist(named(folder))) as opened:
            files = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
        ours = {f"{packages(folder)}/{path}" for path in sources(folder, packages(folder))}
        found = {path for path in files if ".egg-info/" not in path}
        about = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", pyproject(folder)["readme"]}
        assert found == ours | about


def test_all_metadata_are_valid_and_those_of_the_pyproject(dist: Dist) -> None:
    for folder in DISTRIBUTIONS:
        project, wheel = pyproject(folder), dist.wheel(named(folder))
        found = metadata(wheel)
        assert (found.name, str(found.version)) == (project["name"], project["version"])
        assert (found.summary, found.license_expression) == (project["description"], "Apache-2.0")
        assert (str(found.requires_python), found.license_files) == (project["requires-python"], ["LICENSE"])
        assert (found.description_content_type, found.description) == (
            "text/markdown",
            (folder / project["readme"]).read_text(),
        )
        required = {str(each) for each in found.requires_dist or () if each.marker is None}
        assert required == {str(Requirement(each)) for each in project["dependencies"]}
        scripts = {"console_scripts": project["scripts"]} if "scripts" in project else {}
        assert entry_points(wheel) == project.get("entry-points", {}) | scripts


def test_each_plugin_asks_for_the_kernels_that_it_fits(dist: Dist) -> None:
    for folder in PLUGINS:
        ours = {named(folder) for folder in DISTRIBUTIONS}
        asked = [each for each in metadata(dist.wheel(named(folder))).requires_dist or () if each.name in ours]
        assert "rolemesh" in {each.name for each in asked}
        assert {str(each.specifier) for each in asked} == {str(Requirement("rolemesh>=0.1,<0.2").specifier)}
        assert asked[0].specifier.contains(pyproject(ROOT)["version"])
        offers = entry_points(dist.wheel(named(folder)))
        assert any(group.startswith("rolemesh.") for group in offers) or folder.name in LIBRARIES


def test_the_kernel_alone_names_what_to_install_for_a_verb_that_it_has_not(
    kernel_installed: Installed, tmp_path: Path
) -> None:
    done = kernel_installed.run("rolemesh", "new", "workload", "my-sampler", cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'rolemesh[local]'" in done.stderr


def test_the_wheel_from_the_sdist_has_the_files_of_one_from_the_checkout(dist: Dist, tmp_path: Path) -> None:
    direct = build_wheel(dist.checkout, tmp_path)
    with zipfile.ZipFile(direct) as ours, zipfile.ZipFile(dist.wheel("rolemesh")) as theirs:
        assert sorted(ours.namelist()) == sorted(theirs.namelist())


def test_the_installed_kernel_has_no_plugins(kernel_installed: Installed, tmp_path: Path) -> None:
    where = kernel_installed.run("python", "-c", "import rolemesh; print(rolemesh.__file__)", cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(kernel_installed.folder)
    done = kernel_installed.run("rolemesh", "plugins", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def hello(folder: Path) -> Path:
    """examples/hello, in a folder of its own."""
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    return Path(shutil.copytree(ROOT / "examples" / "hello", folder / "hello", ignore=ignored))


def test_the_kernel_alone_has_what_it_needs_and_nothing_of_an_engine(kernel_installed: Installed) -> None:
    names = {distribution.name.lower() for distribution in distributions(path=[str(kernel_installed.packages)])}
    assert {"rolemesh", "pluggy", "pydantic", "numpy"} <= names
    assert not {
        name for name in names if name.startswith(("ray", "torch", "pyzmq", "sqlalchemy", "psutil", "rolemesh-"))
    }


def test_the_inline_extra_validates_plans_and_runs_hello(inline_installed: Installed, tmp_path: Path) -> None:
    job = str(hello(tmp_path) / "job.yaml")
    for command in (("validate", job), ("plan", job), ("run", job)):
        done = inline_installed.run("rolemesh", *command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "runs" / "hello" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 20)
    assert not [*inline_installed.packages.glob("zmq")]


def test_doctor_needs_neither_ray_nor_torch(whole_installed: Installed, tmp_path: Path) -> None:
    done = whole_installed.run("python", "-m", "rolemesh_doctor", "--json", cwd=tmp_path)
    found = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["torch"]["what"].startswith("torch is not installed")
    assert found["ray"]["what"].startswith("Ray is not installed")
    assert {found[name]["status"] for name in ("python", "plugins", "installation", "working-dir")} == {"ok"}


@pytest.mark.parametrize("options", [(), ("--backend", "local")], ids=str)
def test_a_run_with_the_kernel_alone_names_what_to_install(
    options: tuple[str, ...], kernel_installed: Installed, tmp_path: Path
) -> None:
    done = kernel_installed.run("rolemesh", "run", str(hello(tmp_path) / "job.yaml"), *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: no engine is installed\n  → pip install 'rolemesh[local]'\n"


def test_the_local_extra_has_the_distributions_that_it_names(whole_installed: Installed) -> None:
    projects = {named(folder): pyproject(folder) for folder in DISTRIBUTIONS}
    extras = projects["rolemesh"]["optional-dependencies"]
    wanted, left = set[str](), [Requirement(each).name for each in extras["inline"] + extras["local"]]
    while left:
        if (name := left.pop()) in projects and name not in wanted:
            wanted.add(name)
            left += [Requirement(each).name for each in projects[name]["dependencies"]]
    found = {each.name for each in distributions(path=[str(whole_installed.packages)])}
    assert {name for name in found if name.startswith("rolemesh")} == wanted


def test_the_local_extra_runs_hello_in_processes_and_shows_what_happened(
    whole_installed: Installed, tmp_path: Path
) -> None:
    given = ("--backend", "local", "failover=[{use: process}]", "--chaos", "kills=1")
    done = whole_installed.run("rolemesh", "run", str(hello(tmp_path) / "job.yaml"), *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "hello"
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 20)
    assert "<h2>Failures and recoveries</h2>" in (run / "report.html").read_text()
    for command in ("status hello", "events hello", "top hello --once", "trace hello -o hello.pftrace", "view --help"):
        done = whole_installed.run("rolemesh", *command.split(), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    refused = whole_installed.run("rolemesh", "sql", "hello", "select 1", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.endswith("rolemesh sql needs duckdb\n  → pip install 'rolemesh-observe[sql]'\n")


def test_the_local_extra_makes_a_repository_for_a_plugin(whole_installed: Installed, tmp_path: Path) -> None:
    done = whole_installed.run("rolemesh", "new", "workload", "my-sampler", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert {".gitignore", ".github/workflows/ci.yml", "src/rolemesh_my_sampler/__init__.py"} <= set(made["files"])
