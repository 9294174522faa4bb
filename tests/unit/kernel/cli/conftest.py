"""The command line as a person calls it: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def rolemesh(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``rolemesh("plugins", "list")``; `site` is a folder with distributions put on the path."""

    def run(*arguments: str, site: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        code = "import sys; from rolemesh.cli import main; sys.exit(main())"
        env = {key: value for key, value in os.environ.items() if not key.startswith("ROLEMESH_")} | environ
        if site is not None:
            env["PYTHONPATH"] = str(site)
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def broken_site(tmp_path: Path) -> Path:
    """A folder with the distribution ``bad-dist`` 2.3, whose plugin imports something that is not there."""
    site = tmp_path / "site"
    info = site / "bad_dist-2.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-dist\nVersion: 2.3\n")
    (info / "entry_points.txt").write_text("[rolemesh.workloads]\nbad = bad_plugin:Bad\n")
    (site / "bad_plugin.py").write_text("import no_such_thing\n")
    return site
