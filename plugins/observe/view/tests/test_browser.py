"""The pages in a real browser: scripts run under the content policy, and draw."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_server import write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    run = write_run(tmp_path / "run", ended=False)
    viewer = subprocess.Popen(
        [sys.executable, "-m", "rolemesh.cli", "view", str(run), "--no-open"], stdout=subprocess.PIPE, text=True
    )
    assert viewer.stdout is not None
    try:
        yield viewer.stdout.readline().strip()
    finally:
        viewer.kill()
        viewer.wait()


def dom(address: str, profile: Path) -> tuple[str, str]:
    """Return the document after its scripts, and what the browser complains about."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_scripts_draw_lanes_and_curves_without_a_complaint_of_the_browser(address: str, tmp_path: Path) -> None:
    for page, drawn in (("time", 'id="lanes"'), ("metrics", 'data-name="loss"')):
        document, complaints = dom(address.replace("/flow", f"/{page}"), tmp_path / "profile")
        assert complaints == ""
        assert re.search(f'<[^>]*{drawn}[^>]*data-ready="1"', document), document[-3000:]
