"""``rolemesh validate``: the list of errors that must be good, with the place of each."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Rolemesh = Callable[..., subprocess.CompletedProcess[str]]

ROLES = """\
def make() -> list:
    return [1, 2]

def take(rows: list) -> None:
    print(rows)
"""
FLOW = """\
import rolemesh

@rolemesh.flow
def go(job):
    job.b.take(job.a.make())
"""
JOB = """\
name: test
flow: flow.py:go
steps: 3
roles:
  a: {use: function, options: {target: roles.py:make}}
  b: {use: function, options: {target: roles.py:take}}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A job in the folder where the command runs."""
    for name, text in {"job.yaml": JOB, "flow.py": FLOW, "roles.py": ROLES}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_good_job_is_summed_up(rolemesh: Rolemesh, files: Path) -> None:
    done = rolemesh("validate", "job.yaml", "roles.b.world_size=3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "job.yaml: ok. Job 'test': 2 roles, 4 ranks, 2 operator calls, 1 edge, 3 steps\n"


def test_json_says_the_same(rolemesh: Rolemesh, files: Path) -> None:
    result = json.loads(rolemesh("validate", "job.yaml", "--json").stdout)
    assert (result["valid"], result["ranks"], result["problems"]) == (True, 2, [])
    assert "function" in {plugin["name"] for plugin in result["plugins"]}


def test_json_lists_the_problems(rolemesh: Rolemesh, files: Path) -> None:
    done = rolemesh("validate", "job.yaml", "step=3", "--json")
    assert done.returncode == 2
    result = json.loads(done.stdout)
    assert result["valid"] is False
    assert result["problems"] == [
        {
            "kind": "JobFileError",
            "what": "unknown key 'step'",
            "where": "command line: step=3",
            "remedy": "did you mean 'steps'?",
        }
    ]


@pytest.mark.parametrize(
    ("file", "old", "new", "lines"),
    [
        ("job.yaml", "steps: 3", "steps: 3\nsed: 0", ["job.yaml:4: sed: unknown key 'sed'", "did you mean 'seed'?"]),
        ("job.yaml", "steps: 3", "steps: x", ["job.yaml:3: steps: expected an integer, got 'x' (a string)"]),
        (
            "job.yaml",
            "a: {use: function",
            "a: {use: functoin",
            ["job.yaml:5: roles.a.use: there is no workload 'functoin'", "did you mean 'function'?", "installed: "],
        ),
        (
            "job.yaml",
            "roles.py:make",
            "roles.py:mak",
            ["job.yaml:5: roles.a.options.target: 'roles.py:mak' does not resolve", "did you mean 'make'?"],
        ),
        (
            "roles.py",
            "def make",
            "import no_such_thing\ndef make",
            ["job.yaml:5: roles.a.options.target: 'roles.py:make' cannot be imported", "no_such_thing"],
        ),
        ("job.yaml", "flow.py:go", "flow.py:og", ["job.yaml:2: flow: 'flow.py:og' does not resolve"]),
        ("flow.py", "job.a.make()", "job.a.mak()", ["flow.py:5", "mak", "make"]),
        ("flow.py", "job.b.take(job.a.make())", "job.a.make()", ["'b'"]),
    ],
)
def test_an_error_names_place_cause_and_remedy_and_ends_with_2(
    rolemesh: Rolemesh, files: Path, file: str, old: str, new: str, lines: list[str]
) -> None:
    edit(files / file, old, new)
    done = rolemesh("validate", "job.yaml")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for line in lines:
        assert line in done.stderr


def test_a_selected_plugin_that_fails_to_import_is_fatal_with_its_distribution(
    rolemesh: Rolemesh, files: Path, broken_site: Path
) -> None:
    edit(files / "job.yaml", "a: {use: function", "a: {use: bad")
    done = rolemesh("validate", "job.yaml", site=broken_site)
    assert done.returncode == 2
    assert "job.yaml:5: roles.a.use: the workload 'bad' (bad-dist 2.3) cannot be imported" in done.stderr


def test_a_broken_plugin_that_is_not_selected_does_not_matter(
    rolemesh: Rolemesh, files: Path, broken_site: Path
) -> None:
    assert rolemesh("validate", "job.yaml", site=broken_site).returncode == 0
