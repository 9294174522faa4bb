"""``rolemesh new``: what it makes, what it asks, and what it refuses."""

import io
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.installed import listed
from tests.language import check
from tests.prose import in_document, in_python

from rolemesh import cli
from rolemesh_new.command import KINDS

LONG = "anamewithoutdashesaslongasitcan0"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to make repositories in, a git that knows nobody, and no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


def project(repository: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return table


@pytest.mark.parametrize("name", ["x", LONG])
def test_a_new_plugin_is_clean_and_formatted_for_any_length_of_the_name(name: str, here: Path) -> None:
    for kind in KINDS:
        assert cli.main(["new", kind, name, "--into", kind]) == 0
    for how in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *how, "--no-cache", "."],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_a_new_plugin_is_written_by_the_rules_for_our_own(here: Path) -> None:
    for kind in KINDS:
        assert cli.main(["new", kind, "x", "--into", kind]) == 0
    documents = [(path, in_document(path.read_text())) for path in here.rglob("*.md")]
    code = [(path, in_python(path.read_text())) for path in here.rglob("*.py")]
    assert not [found for path, texts in documents + code for text in texts for found in check(text, str(path))]


@pytest.mark.soak
def test_a_new_plugin_has_the_types_that_it_says(here: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        assert cli.main(["new", kind, "x", "--into", kind]) == 0
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache")],
            cwd=here / kind / "rolemesh-x",
            env={**os.environ, "MYPYPATH": "src"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("description", "sentence"), [("Does it", "Does it."), ("Does it.", "Does it.")])
def test_a_description_becomes_one_sentence(description: str, sentence: str, here: Path) -> None:
    assert cli.main(["new", "workload", "x", "--description", description]) == 0
    assert (here / "rolemesh-x/README.md").read_text().splitlines()[2] == sentence


def test_it_prints_what_to_do_next_and_every_file_is_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "workload", "my-sampler", "--into", "deep/er", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    repository = here / "deep/er/rolemesh-my-sampler"
    assert told["folder"] == "deep/er/rolemesh-my-sampler"
    assert told["files"] == sorted(
        str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()
    )
    assert told["files"] == [
        ".github/workflows/ci.yml",
        ".gitignore",
        "README.md",
        "flow.py",
        "job.yaml",
        "pyproject.toml",
        "src/rolemesh_my_sampler/__init__.py",
        "src/rolemesh_my_sampler/test_plugin.py",
    ]
    assert told["next"][0] == "cd deep/er/rolemesh-my-sampler"
    assert told["next"][-1] == "rolemesh run job.yaml --backend local"
    assert "{{" not in (repository / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("MySampler", "is no plugin name", "for example 'mysampler'"),
        ("my.sampler", "is no plugin name", "for example 'my-sampler'"),
        ("my_sampler", "is no plugin name", "for example 'my-sampler'"),
        ("my--sampler", "is no plugin name", "for example 'my-sampler'"),
        ("größe", "is no plugin name", "lower-case letters, digits and single dashes"),
        ("1st", "is no plugin name", "for example 'st'"),
        ("../up", "is no plugin name", "for example 'up'"),
        ("", "is no plugin name", "for example 'my-plugin'"),
        ("x" * 41, "has 41 letters", "at most 32"),
        ("class", "is a word of Python", "'my-class'"),
        ("true", "YAML reads it as another value", "'my-true'"),
        ("process", "is a plugin that rolemesh has already", "'my-process'"),
        ("reasoning-gym", "is a plugin that rolemesh has already", "'my-reasoning-gym'"),
        ("torch", "would replace rolemesh-torch, which is installed", "'my-torch'"),
        ("run", "is a word of rolemesh's own", "'my-run'"),
        ("workloads", "is a word of rolemesh's own", "'my-workloads'"),
        ("rolemesh", "would become rolemesh-rolemesh", "for example 'my-plugin'"),
        ("Rolemesh_Spread", "is no plugin name", "for example 'spread'"),
        ("rolemesh-spread", "would become rolemesh-rolemesh-spread", "for example 'spread'"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_one_that_can(
    name: str, cause: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "failover", name]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: name: ")
    assert cause in told
    assert remedy in told
    assert list(here.iterdir()) == []


NEW = {
    "source": {("sources", "my-source")},
    "scaler": {("scalers", "my-scaler")},
    "check": {("checks", "my-check")},
    "extension": {("extensions", "my-extension")},
    "command": {("commands", "my-command")},
    "examination": {("doctor", "my-examination")},
    "environment": {("environments", "my-environment")},
    "harness": {("harnesses", "my-harness")},
    "kind": {("kinds", "my_kind"), ("my_kind", "brevity")},
}
"""Kinds whose templates are tested here, all in one process; tests/e2e installs those that people write most."""
WITH_JOBS = {
    "engine": {("engines", "my-engine")},
    "sandbox": {("sandboxes", "my-sandbox")},
    "store": {("stores", "my-store")},
    "backend": {("backends", "my-backend")},
}
"""The same, of kinds whose tests run jobs or wait for locks."""


@pytest.mark.parametrize("kinds", [NEW, pytest.param(WITH_JOBS, marks=pytest.mark.soak)], ids=["quick", "with jobs"])
def test_new_plugins_pass_their_tests_and_the_conformance_kit(
    kinds: dict[str, set[tuple[str, str]]], here: Path
) -> None:
    """They are on the path with metadata as pip writes them; nothing is built or installed."""
    paths = [here / "site"]
    for kind in kinds:
        assert cli.main(["new", kind, f"my-{kind}", "--json"]) == 0
        repository = here / f"rolemesh-my-{kind}"
        paths.append(repository / "src")
        listed(repository, paths[0])
    folders = [str(here / f"rolemesh-my-{kind}" / "src") for kind in kinds]
    report = here / "report.json"
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        f"--conformance-report={report}",
    ]
    done = subprocess.run(
        [sys.executable, *command, f"--conformance-report={report}", *folders],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {(one["kind"], one["plugin"]) for one in json.loads(report.read_text()) if one["outcome"] == "passed"}
    assert tested == set().union(*kinds.values())


def test_an_unknown_kind_gets_the_nearest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "workloads", "x"]) == 2
    assert "did you mean 'workload'?" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_folder_that_is_there_stays_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rolemesh-x").mkdir()
    assert cli.main(["new", "observer", "x"]) == 2
    told = capsys.readouterr().err
    assert "rolemesh-x: there is such a folder already" in told
    assert "--into DIR" in told
    assert list((here / "rolemesh-x").iterdir()) == []


def test_a_place_where_nothing_can_be_written_is_an_error_without_a_traceback(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("")
    assert cli.main(["new", "observer", "x", "--into", "file"]) == 2
    assert capsys.readouterr().err.startswith("error: file: no folder can be made here: ")


@pytest.mark.parametrize("email", ["me@laptop", "root@localhost", "me@x.", "me"])
def test_an_address_that_setuptools_refuses_is_refused(
    email: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "workload", "x", "--email", email]) == 2
    assert f"error: email: {email!r} is no e-mail address" in capsys.readouterr().err


def test_author_and_email_come_from_git(here: Path, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada Lovelace\n\temail = ada@example.com\n")
    assert cli.main(["new", "workload", "x", "--email", "countess@example.com"]) == 0
    assert project(here / "rolemesh-x")["authors"] == [{"name": "Ada Lovelace", "email": "countess@example.com"}]


def test_without_git_the_template_has_an_author(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    assert cli.main(["new", "workload", "x"]) == 0
    assert project(here / "rolemesh-x")["authors"] == [{"name": "Your Name", "email": "you@example.com"}]


def test_characters_that_toml_would_misread_arrive_as_given(here: Path) -> None:
    description = r'Says "no" to C:\new, größer 😀'
    assert cli.main(["new", "workload", "x", "--author", "Zoë O'Hara", "--description", description]) == 0
    made = project(here / "rolemesh-x")
    assert made["description"] == description
    assert made["authors"] == [{"name": "Zoë O'Hara", "email": "you@example.com"}]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--author", "two\nlines"),
        ("--author", 'Bobby "Tables"'),
        ("--author", ""),
        ("--email", "nobody"),
        ("--description", "{{ 7 * 7 }}"),
    ],
)
def test_an_answer_that_would_break_a_file_is_refused(
    option: str, value: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "workload", "x", option, value]) == 2
    assert f"error: {option.removeprefix('--')}: {value!r}" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_on_a_terminal_it_asks_for_what_no_option_gives(here: Path) -> None:
    master, slave = pty.openpty()
    code = "import sys; from rolemesh.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "new", "workload", "x", "--author", "Ada"]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        os.write(master, b"ada@example.com\n\n")
        told, _ = process.communicate()
    os.close(master)
    os.close(slave)
    assert process.returncode == 0, told
    assert "E-mail [you@example.com]: " in told
    assert "Author" not in told
    made = project(here / "rolemesh-x")
    assert made["authors"] == [{"name": "Ada", "email": "ada@example.com"}]
    assert str(made["description"]).startswith("A rolemesh role that deals out tasks")


def test_no_other_verb_imports_cookiecutter() -> None:
    code = (
        "import sys; from rolemesh.cli import main; main(['plugins', 'list']); main(['new', '--help'])\n"
        "sys.exit(any(name.split('.')[0] in ('cookiecutter', 'jinja2') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
