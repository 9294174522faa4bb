"""Builds sdist and wheel of the kernel and of every plugin in plugins/: ``PYTHON requirements/dist.py FOLDER``.

PYTHON is one that has what requirements/lock.txt says; what an earlier run left in FOLDER is replaced.

Each is built from a copy that holds its sources and the license, and nothing else. So nothing that an earlier build
left (build/lib, the list of files in an .egg-info) gets into a wheel, and nothing is left in the checkout. The wheel is
built from the sdist. A process of its own builds each, forked from one that has setuptools loaded, as many at once as
there are cores: to start a Python for each of the four steps took three quarters of the time.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # the copy to build from holds sources only, and requirements/ is part of it

from forks import failures  # noqa: E402

try:
    from setuptools import build_meta
except ImportError:
    sys.exit(f"error: {sys.executable} has no setuptools, which requirements/lock.txt pins; make install brings it")

ROOT = Path(__file__).resolve().parents[1]
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4, such as Debian 12's, has no filters."""
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


def build(source: Path, folders: tuple[str, ...], work: Path, out: Path) -> None:
    """Sdist and wheel of the distribution in `source`, which is made of these of its folders."""
    copy = work / "copy"
    for name in folders:
        shutil.copytree(source / name, copy / name, symlinks=True, ignore=IGNORED)
        links = [path for path in (copy / name).rglob("*") if path.is_symlink()]
        for link in [each for each in links if not each.resolve().is_relative_to(copy.resolve())]:
            target = (source / link.relative_to(copy)).resolve()  # it lies outside the distribution's folder
            link.unlink()
            shutil.copytree(target, link, symlinks=True, ignore=IGNORED)
    for file in (ROOT / "LICENSE", source / "pyproject.toml", source / "README.md"):
        shutil.copy(file, copy)
    with chdir(copy):
        sdist = out / build_meta.build_sdist(str(out))
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", **SAFELY)
    with chdir(work / "sdist" / sdist.name.removesuffix(".tar.gz")):
        build_meta.build_wheel(str(out))


def main(folder: Path) -> int:
    """0 if all could be built."""
    plugins = sorted(each.parent for each in ROOT.glob("plugins/*/*/pyproject.toml"))
    sources = [(ROOT, ("core",)), *((each, ("src",)) for each in plugins)]
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "out")
        out.mkdir()
        jobs = []
        for number, (source, folders) in enumerate(sources):
            work = Path(temporary, str(number))
            work.mkdir()
            jobs.append((str(source.relative_to(ROOT.parent)), partial(build, source, folders, work, out)))
        for name, log in failures(jobs, temporary):
            failed = True
            print(f"error: {name} cannot be built:\n{log}", file=sys.stderr)
        if failed:
            return 1
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
            stale.unlink()
        for made in sorted(out.iterdir()):
            shutil.move(made, folder)
            print(f"{made.name}: {(folder / made.name).stat().st_size / 1e3:.0f} KB")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHON requirements/dist.py FOLDER")
    sys.exit(main(Path(sys.argv[1])))
