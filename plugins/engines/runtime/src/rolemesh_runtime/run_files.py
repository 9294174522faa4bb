"""Read the files of a run: the only way in which commands open them.

Another user may have written the run. No file of it leads its reader out of the run's folder, stops it, or fills its
memory: the functions open no pipe and no device, and write nothing. They follow links in this user's own folders only,
where git-annex and DVC put some. The run's folder itself may be a link. Names are plain: no name has a slash.
`rolemesh.runs.jsonl.open_regular` opens files that are directly in the folder.
"""

from __future__ import annotations

import os
import stat
from errno import EFBIG, EINVAL, ELOOP
from io import BufferedReader
from pathlib import Path

from rolemesh.runs.jsonl import links, open_regular

__all__ = ["LINK", "MOST_BYTES", "content_in", "names_in", "open_in"]

MOST_BYTES = 1 << 28
"""Maximum size in bytes of a file that is read as a whole."""
LINK = "it is a link, and links in folders of others are not followed"
"""The error of a link among the files of a run."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK


def open_in(run_dir: str | Path, *names: str) -> BufferedReader:
    """Open a file of the run for reading: ``open_in(run_dir, "logs", "trainer-0.log")``.

    Raises `OSError`, also for a link, a pipe, a device, or a name that is a path.
    """
    *folders, name = names
    at = _opened(run_dir, folders)
    try:
        return open_regular(_plain(name), at)
    except OSError as error:
        what = LINK if error.errno == ELOOP else error.strerror
        raise OSError(error.errno, what, str(Path(run_dir, *names))) from error
    finally:
        os.close(at)


def names_in(run_dir: str | Path, *names: str) -> list[str]:
    """Return the names in a folder of the run, in no order. Raises `OSError`."""
    at = _opened(run_dir, names)
    try:
        return os.listdir(at)
    finally:
        os.close(at)


def content_in(run_dir: str | Path, *names: str, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file of the run. Raises `OSError`, also for more than `most` bytes."""
    with open_in(run_dir, *names) as file:
        size = os.fstat(file.fileno()).st_size
        # A read takes memory for all that it may return, whatever the file has.
        if size <= most and len(data := b"".join(iter(lambda: file.read(size + 1), b""))) <= most:
            return data
    raise OSError(EFBIG, f"it has more than {most} bytes", str(Path(run_dir, *names)))


def _opened(run_dir: str | Path, names: list[str] | tuple[str, ...]) -> int:
    """Return a descriptor of a folder of the run."""
    at = os.open(run_dir, _FOLDER)
    for name in names:
        above = at
        try:
            at = os.open(_plain(name), _FOLDER | links(above), dir_fd=above)
        except NotADirectoryError as error:
            if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                raise OSError(ELOOP, LINK, str(Path(run_dir, *names))) from error
            raise
        finally:
            os.close(above)
    return at


def _plain(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise OSError(EINVAL, "a file's name in a run is no path", name)
    return name
