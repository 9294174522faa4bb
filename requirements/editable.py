"""Builds the editable wheels of distributions: ``PYTHON -S requirements/editable.py SETUPTOOLS OUT FOLDER…``.

SETUPTOOLS is a folder to import setuptools from, best without anything else: setuptools looks through every installed
distribution some twenty times per build. OUT gets the wheels. pip and uv would start two or three Pythons for each of
them; this loads setuptools once and forks.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial

from forks import failures

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
    """Builds the editable wheel of the distribution in `folder`."""
    from setuptools import build_meta

    os.chdir(folder)
    build_meta.build_editable(out)


def main(out: str, folders: list[str]) -> int:
    """0 if all could be built."""
    for module in LOADED:
        importlib.import_module(f"setuptools.{module}")
    failed = 0
    for folder, log in failures([(each, partial(build, os.path.abspath(each), out)) for each in folders], out):
        failed = 1
        print(f"error: {folder} cannot be built:\n{log}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.exit(main(os.path.abspath(sys.argv[2]), sys.argv[3:]))
