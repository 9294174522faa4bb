"""Distributions built from a copy of this checkout, and environments that have them and do not know the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Dist", "Installed", "build_wheel", "listed", "make_dist", "make_environment", "sources"]

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
CHECKOUT = ("LICENSE", "README.md", "cookiecutter", "core", "plugins", "pyproject.toml", "requirements")
LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist", ".venv", ".pytest_cache", ".*_cache")


def listed(repository: Path, site: Path) -> None:
    """Write into the folder `site` what an installer writes of a distribution, as far as rolemesh reads it.

    With the repository's ``src`` on the path as well, processes have it as if it were installed.
    """
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + "".join(f"Requires-Dist: {need}\n" for need in project["dependencies"]))
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("".join(lines))


@dataclass(frozen=True)
class Dist:
    """The results of `make dist`: `folder` with sdists and wheels. `checkout` is a copy with leftovers in it."""

    checkout: Path
    before: frozenset[str]
    folder: Path

    def wheel(self, name: str) -> Path:
        """The wheel of a distribution."""
        (found,) = self.folder.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
        return found

    def wheels(self, *names: str) -> list[Path]:
        """The wheels of several."""
        return [self.wheel(name) for name in names]

    def sdist(self, name: str) -> Path:
        """The sdist of a distribution."""
        (found,) = self.folder.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz")
        return found


@dataclass(frozen=True)
class Installed:
    """A virtual environment in `folder`."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        """The folder of its packages."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *arguments: str) -> None:
        """``pip install``, with what the lock pins. Raises where it fails."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "--disable-pip-version-check",
            "--quiet",
            "install",
            "--no-compile",  # whatever a test imports is compiled then
        ]
        done = _run([*pip, "--constraint", str(LOCK), *arguments], self.folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command of the environment's ``bin/``, by name, or a program by path."""
        program = self.folder / "bin" / command[0]
        return _run([str(program), *command[1:]], cwd)


def sources(folder: Path, packages: str) -> set[str]:
    """The files of a distribution's packages, which lie in ``folder/packages``: paths as in a wheel.

    That of `rolemesh new` has the templates of ``cookiecutter/``.
    """
    found = _files(folder / packages)
    if folder == ROOT / "plugins/commands/base":
        found |= {f"rolemesh_new/_templates/{path}" for path in _files(ROOT / "cookiecutter")}
    elif folder == ROOT:
        found -= {"README.md", "ruff.toml"}  # the first is in the metadata
    return found


def _files(root: Path) -> set[str]:
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path)
        for path in files
        if not {"__pycache__", ".ruff_cache"} & {*path.parts} and ".egg-info" not in path.parts[0]
    }


def make_dist(folder: Path) -> Dist:
    """``make dist`` on a copy of the checkout in which earlier builds have left things. Raises where it fails."""
    copy = folder / "checkout"
    copy.mkdir(parents=True)
    for name in CHECKOUT:
        _copy(ROOT / name, copy / name)
    for distribution, packages in (
        (copy, "core/rolemesh"),
        (copy / "plugins/failover/base", "src/rolemesh_failover_job"),
    ):
        for stale in (f"build/lib/{Path(packages).name}/stale.py", f"{packages}/__pycache__/stale.pyc", "stale.py"):
            (distribution / stale).parent.mkdir(parents=True, exist_ok=True)
            (distribution / stale).write_text("raise AssertionError('built from what an earlier build has left')\n")
        info = distribution / f"{packages}.egg-info"
        info.mkdir()
        (info / "SOURCES.txt").write_text("stale.py\n")
    before = frozenset(map(str, copy.rglob("*")))
    done = _run([sys.executable, str(copy / "requirements/dist.py"), str(folder / "dist")], copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return Dist(copy, before, folder / "dist")


def build_wheel(source: Path, folder: Path) -> Path:
    """The wheel of one distribution, not by way of an sdist, from a copy of `source` below `folder`."""
    _copy(source, folder / "source")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "source"]
    done = _run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def make_environment(
    folder: Path, wheels: Sequence[Path], base: Installed | None = None, also: Sequence[str] = ()
) -> Installed:
    """Make a new virtual environment with `wheels` and the packages `also`.

    Dependencies come from `base` if it has them, and else have the versions of the lock.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    made = Installed(folder)
    if base is None:
        made.install(*map(str, wheels))
    else:
        # Lines of a .pth file in a folder that another one names are not read.
        theirs, further = base.packages, base.packages / "base.pth"
        (made.packages / "base.pth").write_text(f"{theirs}\n{further.read_text() if further.exists() else ''}")
        made.install("--no-deps", "--ignore-installed", "--no-index", *map(str, wheels))
        made.install(*map(str, wheels))  # what they need and neither has
    if also:
        made.install(*also)
    done = _run([sys.executable, "-m", "pip", "--python", made.python, "check"], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=LEFTOVERS)
    else:
        shutil.copy(source, target)


def _run(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
