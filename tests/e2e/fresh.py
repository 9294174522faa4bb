"""A fresh virtual environment: packages as this environment has them, and rolemesh from its wheel, not the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["Fresh", "build_wheel"]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "core", "cookiecutter")


class Fresh:
    """A virtual environment in `folder`. No index is asked: what is needed is linked from this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
        [self.site] = folder.glob("lib/python3*/site-packages")
        self.python = folder / "bin" / "python"
        self.link("pip", "setuptools")

    def run(self, *command: str | Path, cwd: Path, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command with this environment's programs first and nothing of the checkout on Python's path.

        What it printed is told if it fails and must not.
        """
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ROLEMESH_", "PIP_"))}
        env |= {"PATH": f"{self.folder / 'bin'}{os.pathsep}{env['PATH']}", "PYTHONNOUSERSITE": "1"}
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert fails or done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def install(self, *arguments: str | Path) -> None:
        """``pip install`` without an index: every requirement must be met by what is linked or named."""
        pip = (self.python, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-build-isolation")
        self.run(*pip, *arguments, cwd=self.folder)

    def install_wheel(self, wheel: Path, *extras: str) -> None:
        """Install a wheel, after linking what it requires with these extras."""
        [built] = distributions(path=[str(wheel)])
        self.link(*_needs(built, extras))
        self.install(f"{wheel}[{','.join(extras)}]")

    def link(self, *requirements: str) -> None:
        """Link these distributions, and what they require, from this environment."""
        wanted, seen = [Requirement(each) for each in requirements], set[tuple[str, str]]()
        while wanted:
            requirement = wanted.pop()
            new = {(requirement.name, extra) for extra in ("", *requirement.extras)} - seen
            seen |= new
            if new:
                found = distribution(requirement.name)
                self._link(found)
                wanted += [Requirement(line) for line in _needs(found, [extra for _, extra in new])]

    def _link(self, found: Distribution) -> None:
        for file in found.files or ():
            top = file.parts[0]
            if top != "..":
                name, target = self.site / top, Path(str(found.locate_file(top)))
            elif file.parent.name == "bin" and _is_program(Path(file.locate())):
                name, target = self.folder / "bin" / file.name, Path(file.locate())
            else:
                continue
            if not name.exists() and top != "__pycache__":
                name.symlink_to(target.resolve())


def _needs(found: Distribution, extras: Iterable[str]) -> list[str]:
    """The requirements of a distribution with these extras."""
    needs = []
    for line in found.requires or ():
        marker = Requirement(line).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needs.append(line)
    return needs


def _is_program(path: Path) -> bool:
    """Whether it runs by itself: a script would run in the environment that it was installed in."""
    return path.is_file() and path.read_bytes()[:2] != b"#!"


def build_wheel(folder: Path) -> Path:
    """The kernel's wheel, built from a copy of its sources."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, sources / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index", "--no-deps")
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", folder, sources], check=True, timeout=240)
    [wheel] = folder.glob("rolemesh-*.whl")
    return wheel
