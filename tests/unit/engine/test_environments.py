"""A role's `runtime_env`: the keys that a job file may have, and the parts that travel to agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolemesh.errors import JobFileError, Problems
from rolemesh.job.prepared import prepare
from rolemesh.job_file import JobFile, load
from rolemesh_durable.engine import DurableEngine
from rolemesh_durable.environments import environment_of, wrong_environments
from rolemesh_durable.protocol.job import Environment
from rolemesh_inline import InlineEngine

HELLO = Path(__file__).parents[3] / "examples/hello/job.yaml"
JOB = """\
name: test
flow: flow.py:f
steps: 1
roles:
  a:
    use: function
    runtime_env: {environment}
  b: {{use: function}}
"""


def job(folder: Path, environment: str, **environ: str) -> JobFile:
    (folder / "job.yaml").write_text(JOB.format(environment=environment))
    return load(folder / "job.yaml", (), environ)


def errors(folder: Path, environment: str) -> list[tuple[str, str]]:
    """Place and cause of each."""
    found = list(wrong_environments(job(folder, environment)))
    assert all(error.remedy for error in found)
    return [((error.where or "").removeprefix(f"{folder}/"), error.what) for error in found]


def test_paths_are_relative_to_the_job_file_and_requirements_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "tiny-1.0-py3-none-any.whl").touch()
    (tmp_path / "code").mkdir()
    asked = "{pip: [tiny-1.0-py3-none-any.whl, tiny @ ./tiny-1.0-py3-none-any.whl, 'a[b]==1.0', 'c @ https://x/c.zip'],"
    made = job(tmp_path, asked + " working_dir: code, env_vars: {N: 1}}")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    assert {name: environment_of(made, name) for name in made.spec.roles} == {
        "a": Environment(
            (str(wheel), f"tiny @ file://{wheel}", "a[b]==1.0", "c @ https://x/c.zip"),
            str(tmp_path / "code"),
            f"{tmp_path}/job.yaml:7: roles.a.runtime_env.pip",
        ),
        "b": Environment(),
    }


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("tiny-1.0-py3-none-any.whl", "there is no file {}/tiny-1.0-py3-none-any.whl"),
        ("./code", "{}/code is a folder, whose content may change: an environment is cached by its lines"),
        ("-r requirements.txt", "-r is an option of pip, not a requirement"),
        ("--index-url=https://user:secret@host/", "--index-url is an option of pip, not a requirement"),
        ("''", "an empty line installs nothing"),
    ],
)
def test_unsupported_pip_lines_are_refused_with_their_line(tmp_path: Path, line: str, cause: str) -> None:
    (tmp_path / "code").mkdir()
    found = errors(tmp_path, f"{{pip: [a, {line}]}}")
    assert found == [("job.yaml:7: roles.a.runtime_env.pip.1", cause.format(tmp_path))]


def test_a_folder_that_is_not_there_is_refused_with_its_line(tmp_path: Path) -> None:
    [(where, what)] = errors(tmp_path, "{working_dir: gone}")
    assert (where, what) == ("job.yaml:7: roles.a.runtime_env.working_dir", f"there is no folder {tmp_path / 'gone'}")


def test_the_engine_says_so_before_anything_starts() -> None:
    with pytest.raises(JobFileError, match=r"roles\.source\.runtime_env.*: there is no folder /gone"):
        DurableEngine.check(prepare(HELLO, ["roles.source.runtime_env.working_dir=/gone"]))


def test_an_unknown_key_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"job\.yaml:7: roles\.a\.runtime_env\.pips: unknown key 'pips'"):
        job(tmp_path, "{pips: [a]}")


def test_one_process_can_have_variables_but_no_packages_or_folder_of_a_role(tmp_path: Path) -> None:
    def start(**environment: object) -> None:
        asked = f"roles.source.runtime_env={json.dumps(environment)}"
        InlineEngine(InlineEngine.RunOptions()).start(prepare(HELLO, [asked], engine="inline"), tmp_path, say=print)

    start(env_vars={"A": 1})
    with pytest.raises(Problems) as caught:
        start(pip=["a"], working_dir=".")
    places = [(error.where or "").rpartition(": ")[2] for error in caught.value.errors]
    assert places == ["roles.source.runtime_env.pip", "roles.source.runtime_env.working_dir"]
