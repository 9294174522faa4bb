"""Writes a file that readers see as a whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced"]


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Return the path of a new, empty file beside `path`. It becomes `path` at the end, unless an exception comes.

    Raises `OSError`, also for a pipe or a device, which a file must not replace.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:200]}.", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
