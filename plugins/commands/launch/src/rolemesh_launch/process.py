"""A rank's process before the script begins: as if Python had been started for the script alone."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["as_python_starts"]


def as_python_starts(folder: str | os.PathLike[str]) -> None:
    """Take away what a rank has that a script would stumble over.

    `folder` is the job file's. It and the working directory leave ``sys.path``, unless ``PYTHONPATH`` has them: a
    folder ``datasets`` beside the data is not the package. What rolemesh logs leaves the root logger, where it would
    make the script's ``logging.basicConfig`` change nothing. Generators get a seed of their own: all ranks are forked
    from one process, with the same state.
    """
    import numpy as np
    import torch

    kept = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = {os.path.abspath(folder), os.getcwd()}
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) not in ours or path in kept]
    root = logging.getLogger()
    names = {name.partition(".")[0] for name in root.manager.loggerDict}
    for own in (logging.getLogger(name) for name in names if name.startswith("rolemesh")):
        own.handlers, own.propagate = list(root.handlers), False
        own.setLevel(root.level)
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    torch.seed()
    np.random.seed()
