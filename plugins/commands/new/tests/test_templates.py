"""The templates in ``cookiecutter/``: what they share is one file, and they work with cookiecutter alone."""

import json
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from rolemesh import cli
from rolemesh.cli.verbs import OWN as OWN_VERBS
from rolemesh.kinds import kind_names
from rolemesh_new.command import KINDS

ROOT = Path(__file__).resolve().parents[4]
TEMPLATES = ROOT / "cookiecutter"
SHARED = TEMPLATES / "_shared"
OWN = {
    "kind": {"flow.py", "job.yaml", "conformance.py", "__init__.py", "test_conformance.py"},
    "source": {"flow.py", "job.yaml", "conformance.py"},
    "workload": {"flow.py", "job.yaml", "conformance.py"},
}
"""Files of a template that take the place of those that all share."""
OFTEN = (*OWN, "observer")
"""The templates with files of their own, and one without."""


def pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_templates_link_their_shared_files(kind: str) -> None:
    for path in [each for each in SHARED.glob("{{*/**/*") if each.is_file() and each.name not in OWN.get(kind, ())]:
        link = TEMPLATES / kind / path.relative_to(SHARED)
        assert link.is_symlink(), f"{link} must be a link to {path}"
        assert link.resolve() == path
    assert (TEMPLATES / kind / "hooks").resolve() == SHARED / "hooks"


def test_every_template_asks_the_same_four_questions() -> None:
    asked = [json.loads((TEMPLATES / kind / "cookiecutter.json").read_text()) for kind in KINDS]
    for kind, answers in zip(KINDS, asked, strict=True):
        assert [each for each in answers if not each.startswith("_")] == ["name", "author", "email", "description"]
        assert answers["_kind"] == kind
        for each in ("__prompts__", "__dist", "__pkg", "author", "email"):
            assert answers[each] == asked[0][each]


def test_no_name_of_a_plugin_or_distribution_of_this_repository_can_be_taken() -> None:
    taken = set()
    for folder in [ROOT, *(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))]:
        project = pyproject(folder)["project"]
        groups = project.get("entry-points", {})
        plugins = [names for group, names in groups.items() if group != "rolemesh.defaults"]
        taken |= {name for names in plugins for name in names if "." not in name}
        taken |= {project["name"].removeprefix("rolemesh-")}
    hook = runpy.run_path(str(SHARED / "hooks" / "pre_gen_project.py"))
    assert set(hook["KERNEL_NAMES"]) == taken - {"rolemesh"}
    assert set(hook["VERBS"]) == set(OWN_VERBS)
    assert {*hook["GROUPS"], *taken} >= {*kind_names(), "kinds", "conformance"}


def test_a_new_plugin_is_built_like_the_kernel_and_fits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "workload", "x", "--json"]) == 0
    made = pyproject(tmp_path / "rolemesh-x")
    assert made["build-system"] == pyproject(ROOT)["build-system"]
    [kernel] = [each for line in made["project"]["dependencies"] if (each := Requirement(line)).name == "rolemesh"]
    assert kernel.specifier.contains(version("rolemesh"))
    assert not kernel.specifier.contains("0.2.0")


def plain(folder: Path, *answers: str) -> subprocess.CompletedProcess[str]:
    """Cookiecutter as a person calls it, which keeps to `folder` with all that it writes."""
    config = folder / "config.yaml"
    config.write_text(f"cookiecutters_dir: {folder}/clones\nreplay_dir: {folder}/replay\n")
    where = ["--directory", f"cookiecutter/{answers[0]}", "--output-dir", str(folder / "plain")]
    command = [sys.executable, "-m", "cookiecutter", str(ROOT), *where, "--no-input", "--config-file", str(config)]
    return subprocess.run(
        [*command, *answers[1:]],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("kind", [k if k in OFTEN else pytest.param(k, marks=pytest.mark.soak) for k in KINDS])
def test_cookiecutter_alone_makes_the_same_as_rolemesh_new(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {"author": "Ada", "email": "ada@example.com", "description": "Does much"}
    done = plain(tmp_path, kind, "name=my-plugin", *(f"{each}={value}" for each, value in answers.items()))
    assert done.returncode == 0, done.stderr
    options = [word for each, value in answers.items() for word in (f"--{each}", value)]
    assert cli.main(["new", kind, "my-plugin", "--into", "new", *options]) == 0
    assert contents(tmp_path / "plain") == contents(tmp_path / "new")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_cookiecutter_alone_refuses_names_too_and_leaves_nothing(tmp_path: Path) -> None:
    done = plain(tmp_path, "workload", "name=Fsdp")
    assert done.returncode != 0
    assert "error: name: 'Fsdp' is no plugin name" in done.stderr
    assert "  → use lower-case letters" in done.stderr
    assert list((tmp_path / "plain").iterdir()) == []
