"""Builds the editable wheels of distributions: ``PYTHON -S requirements/editable.py SETUPTOOLS OUT FOLDER…``.

SETUPTOOLS is a folder to import setuptools from, best without anything else: setuptools looks through every installed
distribution some twenty times per build. OUT gets the wheels. pip and uv would start two or three Pythons for each of
them; this loads setuptools once and forks.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

LOADED = (
    "build_meta",
    "command.bdist_wheel",
    "command.dist_info",
    "command.editable_wheel",
    "config._apply_pyprojecttoml",
    "config._validate_pyproject",
)
"""What each build would import again, if it were not loaded before the fork."""


def build(folder: str, out: str) -> None:
    """One editable wheel, and what setuptools says in a file beside it."""
    from setuptools import build_meta

    os.chdir(folder)
    build_meta.build_editable(out)


def forked(folder: str, out: str, log: str) -> int:
    """The same in a process of its own, which writes to `log`; its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        build(folder, out)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main(out: str, folders: list[str]) -> int:
    """0 if all could be built."""
    for module in LOADED:
        importlib.import_module(f"setuptools.{module}")
    waiting = list(enumerate(folders))
    running: dict[int, tuple[str, str]] = {}
    failed = 0
    while waiting or running:
        if waiting and len(running) < (os.cpu_count() or 1):
            number, folder = waiting.pop(0)
            log = os.path.join(out, f"{number}.log")
            running[forked(os.path.abspath(folder), out, log)] = folder, log
            continue
        pid, status = os.wait()
        folder, log = running.pop(pid)
        if status:
            failed = 1
            with open(log, encoding="utf-8", errors="replace") as file:
                print(f"error: {folder} cannot be built:\n{file.read()}", file=sys.stderr)
        os.unlink(log)
    return failed


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.exit(main(os.path.abspath(sys.argv[2]), sys.argv[3:]))
