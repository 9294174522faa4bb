"""Bytecode of a checkout, so that no sample compiles modules which another sample reads compiled.

A checkout's modules are compiled at their first import after a change. Where ``PYTHONDONTWRITEBYTECODE`` is set, every
process compiles them again: 134 modules cost a driver 55 ms, so an older checkout seemed to be faster.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["VARIABLE", "write_bytecode"]

VARIABLE = "PYTHONDONTWRITEBYTECODE"


def write_bytecode(checkout: Path, python: str | Path) -> None:
    """Compile the modules of `checkout` that changed, and let the processes of this one write bytecode, too."""
    os.environ.pop(VARIABLE, None)
    subprocess.run([python, "-m", "compileall", "-q", "core", "plugins", "benchmarks"], cwd=checkout, check=True)
