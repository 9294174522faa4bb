"""The tutorial, as a newcomer would follow it: its files are written, its commands run, their output is as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[1] / "docs/tutorial.md"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
AT_ITS_END = " (at its end)"
SLOW = r"^(?:\d+ tests have ended, .*|reading .* for \d+ s.*|starting: .*)\n"
"""Lines that commands add on a slow machine, so that nobody waits in silence."""

PIP = """\
#!{python}
# `pip install DISTRIBUTION` here: a folder is installed for this test only, anything else must be there already.
import re, subprocess, sys
from importlib.metadata import distribution

command, *wanted = sys.argv[1:]
assert command == "install" and wanted, sys.argv
for each in wanted:
    if each.startswith("."):
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", "{site}"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, each], check=True)
    else:
        name, _, extra = each.rstrip("]").partition("[")
        for line in distribution(name).requires or ():
            if f'extra == "{{extra}}"' in line:
                distribution(re.match(r"[\\w.-]+", line)[0])
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell in which `rolemesh` and `pip` are those of the environment that runs the tests."""
    bin_dir, site = tmp_path / "bin", tmp_path / "site"
    bin_dir.mkdir()
    scripts = {
        "rolemesh": f'#!/bin/sh\nexec "{sys.executable}" -m rolemesh.cli "$@"\n',
        "pip": PIP.format(python=sys.executable, site=site),
    }
    for name, text in scripts.items():
        (bin_dir / name).write_text(text)
        (bin_dir / name).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ROLEMESH_", "PYTEST_"))}
    return kept | {
        "PATH": os.pathsep.join([str(bin_dir), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)]),
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "HOME": str(tmp_path),
    }


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output that is shown under it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def pattern(output: str) -> str:
    """Shown output as a regular expression: a line ``…`` is any lines, ``…`` within a line is anything in it."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ ]*\n"
        for line in output.splitlines()
    ]
    return "".join([*lines, r"\s*"])


@pytest.mark.slow
def test_every_file_command_and_output_of_the_tutorial(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "pi"
    folder.mkdir()
    seen = 0
    for language, title, content in FENCE.findall(TUTORIAL.read_text()):
        if title.endswith(AT_ITS_END):
            path = folder / title.removesuffix(AT_ITS_END)
            path.write_text(path.read_text() + content)
        elif title:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(content)
        elif language == "console":
            for command, shown in commands(content):
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=folder,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                said = re.sub(SLOW, "", done.stdout, flags=re.MULTILINE)
                assert re.fullmatch(pattern(shown), said), f"$ {command}\n{said}"
                assert (done.returncode == 0) != shown.startswith("error:"), f"$ {command} ended with {done.returncode}"
                seen += 1
    assert seen > 10


@pytest.mark.parametrize(
    ("shown", "output", "fits"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a … c\n", "a b c   \n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("a …\n", "a\nb\n", False),
        ("", "a\n", False),
    ],
)
def test_a_shown_output_matches_only_output_that_differs_at_marked_places(shown: str, output: str, fits: bool) -> None:
    assert (re.fullmatch(pattern(shown), output) is not None) == fits
