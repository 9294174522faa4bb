"""Bytecode of a checkout, so that no sample compiles modules which another sample reads compiled.

Python compiles a module at its first import after a change. With ``PYTHONDONTWRITEBYTECODE`` every process compiles it
again: 134 modules cost a driver 55 ms, so an older checkout seemed to be faster.
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
