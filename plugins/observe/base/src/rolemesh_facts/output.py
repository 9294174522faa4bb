"""Writes a file that readers see as a whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from rolemesh.runs.jsonl import links
from rolemesh_runtime.run_files import LINK

__all__ = ["replaced"]


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Return the path of a new, empty file beside `path`. It becomes `path` at the end, unless an exception comes.

    The umask decides who may read it. Raises `OSError`, also for a pipe or a device, which a file must not replace, and
    for a link in a folder of others, which could lead to any file of this user.
    """
    if path.is_symlink() and links(str(path.parent)):
        raise OSError(errno.ELOOP, LINK, str(path))
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    partial = path.with_name(f".{path.name[:200]}.{token_hex(8)}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
