"""The frame of the command line: verbs, exit codes, errors without a traceback."""

import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest

from rolemesh import cli
from rolemesh.cli.verbs import verbs
from rolemesh.errors import BackendError, JobFailedError, Problems, RolemeshError

Rolemesh = Callable[..., subprocess.CompletedProcess[str]]


def test_the_verbs_are_these() -> None:
    assert [name for name in verbs() if "." not in name] == [
        "run", "validate", "plan", "plugins",
        "attach", "check", "checkpoint", "clean", "debug", "doctor", "drain", "events", "launch", "logs", "new",
        "replay-op", "report", "scale", "schema", "sql", "status", "stop", "submit", "top", "trace", "view",
    ]  # fmt: skip


def test_the_version_is_the_distributions(rolemesh: Rolemesh) -> None:
    from importlib.metadata import version

    assert rolemesh("--version").stdout.strip() == version("rolemesh")
    for module in ("rolemesh", "rolemesh.cli"):
        assert subprocess.check_output([sys.executable, "-m", module, "--version"], text=True).split() == [
            version("rolemesh")
        ]


@pytest.mark.parametrize("verb", [name for name in verbs() if "." not in name and name != "launch"])
def test_the_help_of_a_verb_is_whole_on_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([verb, "--help"]) == 0
    assert "…" not in capsys.readouterr().out


def test_an_unknown_verb_gets_the_nearest_and_ends_with_2(rolemesh: Rolemesh) -> None:
    done = rolemesh("valdate")
    assert done.returncode == 2
    assert "validate" in done.stderr


@pytest.mark.parametrize(
    ("raised", "code", "printed"),
    [
        (
            BackendError("no Ray", where="127.0.0.1:1", remedy="start it"),
            2,
            "error: 127.0.0.1:1: no Ray\n  → start it\n",
        ),
        (JobFailedError("died"), 1, "error: died\n"),
        (Problems([RolemeshError("a"), RolemeshError("b", remedy="c")]), 2, "error: a\nerror: b\n  → c\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_printed_without_a_traceback_and_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, printed: str
) -> None:
    def command() -> None:
        raise raised

    monkeypatch.setattr("rolemesh.cli.validate.command", command)
    assert cli.main(["validate"]) == code
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize("at_once", [True, False])
def test_a_full_disk_behind_stdout_is_exit_code_1_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at_once: bool
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        monkeypatch.setattr("rolemesh.cli.validate.command", lambda: print("much", flush=at_once))
        assert cli.main(["validate"]) == 1
    assert capsys.readouterr().err == (
        "error: the output cannot be written: No space left on device\n  → write it to a place that has room\n"
    )


def test_closed_standard_streams_are_the_null_device() -> None:
    code = (
        "import os; from rolemesh.cli import main; main(['verbs']); print('text');"
        "os._exit(sum(os.readlink(f'/proc/self/fd/{fd}') != os.devnull for fd in range(3)))"
    )
    closed = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], check=False)
    assert closed.returncode == 0


def test_a_warning_is_printed_without_the_place_in_our_code(
    rolemesh: Rolemesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    rolemesh("--version")
    assert (
        warnings.formatwarning("'a' is called 'b' now", FutureWarning, "a.py", 3) == "warning: 'a' is called 'b' now\n"
    )
