"""Stands in for pycosat where it could not be built, so that ``import reasoning_gym`` works without a C compiler.

It has no solver: a task that needs one (zebra_puzzles) fails with the reason and the remedy.
"""

from typing import NoReturn

__version__ = "0.6.6+unavailable"


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"pycosat.{name} is needed by this task, but pycosat could not be built when rolemesh was installed: "
        "install a C compiler and Python's headers (Debian: gcc python3-dev), then run make clean install"
    )
