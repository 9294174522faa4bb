"""The files of container images, unpacked once per machine and user by podman or docker."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rolemesh_agents import AgentError
from rolemesh_sandbox_process.guard.emptying import remove

__all__ = ["Image", "find_image", "inside_of"]

ENGINES = ("podman", "docker")
ROOM = "make room there, or set XDG_CACHE_HOME to another place"


class Image(NamedTuple):
    """An unpacked image.

    - `root`: the folder with its files.
    - `env`: its environment variables.
    - `folder`: its working directory; "" if it has none.
    """

    root: Path
    env: Mapping[str, str]
    folder: str


def find_image(name: str, engine: str, cache: Path) -> Image:
    """Return an image. `name` is a name that `engine` knows or can pull, or the absolute path of a root file system.

    Each image is unpacked once, into ``cache/ID``. Raises `AgentError` if that fails.
    """
    if os.path.isabs(name):
        if not os.path.isdir(name):
            raise AgentError(
                "there is no such root file system", where=name, remedy="give a folder, or an image's name"
            )
        return Image(Path(name), {}, "")
    program = _engine(engine)
    about = _inspect(program, name)
    if about is None:
        _ask(program, "pull", "--quiet", "--", name)
        about = _inspect(program, name)
    if about is None:
        raise AgentError(f"{program} does not find the image {name}", remedy=f"{program} pull {name}")
    number, settings = about["Id"].removeprefix("sha256:"), about.get("Config") or {}
    root = cache / number
    if not root.is_dir():
        try:
            with _locked(cache, number) as lock:
                if not root.is_dir():
                    _unpack(program, name, root, lock)
        except OSError as error:
            what = f"the image {name} cannot be unpacked: {error.strerror}"
            raise AgentError(what, where=str(error.filename or cache), remedy=ROOM) from error
    env = dict(each.partition("=")[::2] for each in settings.get("Env") or ())
    return Image(root, env, settings.get("WorkingDir") or "")


def inside_of(root: Path, path: str) -> Path | None:
    """Return where a folder of the image is on this machine; None if the image has no such folder.

    Raises `AgentError` if a part of the path is a symbolic link: it would be followed on this machine.
    """
    found = root
    for part in Path(path).parts[1:]:
        found /= part
        if found.is_symlink():
            raise AgentError(
                f"{path} leads over a symbolic link in the image", where=str(found), remedy="name its target"
            )
    return found if found.is_dir() else None


def _engine(wanted: str) -> str:
    for each in (wanted,) if wanted else ENGINES:
        if program := shutil.which(each):
            return program
    what = f"neither {' nor '.join(ENGINES)} is on the path" if not wanted else f"{wanted} is not on the path"
    raise AgentError(what, remedy="apt install podman, dnf install podman, or the like; or give image a folder's path")


def _inspect(program: str, name: str) -> dict[str, Any] | None:
    done = subprocess.run([program, "image", "inspect", "--", name], capture_output=True, text=True, check=False)
    found: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    return found[0] if found else None


def _ask(program: str, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        told = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        what = f"{Path(program).name} {' '.join(arguments)} failed: {told[-1]}"
        raise AgentError(what, remedy="try the command by hand")


@contextmanager
def _locked(cache: Path, number: str) -> Iterator[int]:
    """Only one process of this machine unpacks an image. The descriptor of the lock goes to processes that write the
    files: they may outlive a killed one. The file stays: a process that waits for it must not hold another file than
    one that comes later."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(cache / f"{number}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _unpack(program: str, name: str, root: Path, lock: int) -> None:
    """Unpack the files of an image, as files of this user. Rests of a process that was killed meanwhile go first.

    Other users of docker, and jobs with another cache, may unpack the same image: their containers have other names.
    """
    part = root.with_suffix(".part")
    container = f"rolemesh-unpack-{hashlib.sha256(str(part).encode()).hexdigest()[:16]}"
    _forget(program, container, part)
    try:
        _ask(program, "create", "--name", container, "--", name, "/bin/true")
        part.mkdir(mode=0o700)
        with subprocess.Popen([program, "export", container], stdout=subprocess.PIPE) as export:
            tar = ["tar", "--extract", "--no-same-owner", "--exclude=dev/*", f"--directory={part}"]
            done = subprocess.run(
                tar, stdin=export.stdout, capture_output=True, text=True, check=False, pass_fds=(lock,)
            )
        if done.returncode or export.returncode:
            what = f"the image {name} cannot be unpacked: {done.stderr.strip()[-300:] or 'the export failed'}"
            raise AgentError(what, where=str(part), remedy=ROOM)
        part.rename(root)
    finally:
        _forget(program, container, part)


def _forget(program: str, container: str, part: Path) -> None:
    subprocess.run([program, "rm", "--force", container], capture_output=True, check=False)
    if part.exists():
        remove(str(part))
