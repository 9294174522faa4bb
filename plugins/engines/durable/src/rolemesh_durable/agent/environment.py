"""Prepare a role's environment, then become its zygote: ``python -m …agent.environment FD PARENT …``.

The arguments are the zygote's; the first parcel on FD is the `Environment`. pip installs into a virtual environment on
top of this interpreter's packages, so it holds only the differences. It is kept in the user's cache folder, under a
hash of its content, for all jobs on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from rolemesh.errors import BackendError, PluginError
from rolemesh.kinds.installed import version
from rolemesh_durable.agent import zygote
from rolemesh_durable.protocol.job import Environment
from rolemesh_processes import parcels
from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.installing import install
from rolemesh_processes.signals import pass_over

__all__ = ["cache_folder", "interpreter"]

CACHE = "ROLEMESH_CACHE"
"""Environment variable of the agent with the folder for environments."""
MADE = ".made"
"""File that marks an environment as complete."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this user's environments on this machine."""
    if environ.get(CACHE):
        return Path(environ[CACHE])
    home = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "rolemesh")


def interpreter(environment: Environment, say: Callable[[str], None]) -> str:
    """Return the Python for this role's processes. If needed, it is created, and `say` receives the progress.

    Raises `BackendError` if pip fails or the cache cannot be written.
    """
    if not environment.pip:
        return sys.executable
    parents = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    cache = Path("~", ".cache")
    try:
        cache = cache_folder(os.environ) / "environments"
        folder = cache / _key(environment, parents)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / MADE).exists():
            with _locked(folder.with_suffix(".lock"), say) as lock:
                if not (folder / MADE).exists():
                    _make(folder, environment, parents, lock, say)
    except (OSError, RuntimeError) as error:  # the second if the user has no home
        what = f"an environment cannot be kept in {cache}: {getattr(error, 'strerror', None) or error}"
        remedy = f"set {CACHE} to a folder that this user can write to, where agents are started"
        raise BackendError(what, remedy=remedy) from error
    return str(folder / "bin" / "python")


def _key(environment: Environment, parents: list[str]) -> str:
    """Return a hash of everything that decides what is installed: lines, wheels, pip's variables, and the present
    packages."""
    wheels = {}
    for line in environment.pip:
        path = Path(line.rpartition(" @ file://")[2])
        if path.is_file():
            wheels[line] = hashlib.sha256(path.read_bytes()).hexdigest()
    options = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PIP_")}
    parts = [sys.version, sys.prefix, parents, version("rolemesh"), environment.pip, wheels, options]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that makes it")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _has_pip() -> bool:
    """Return whether pip is installed. It is not imported, because setuptools would then change distutils."""
    with contextlib.suppress(PluginError):
        return bool(version("pip"))
    return False


def _make(folder: Path, environment: Environment, parents: list[str], lock: int, say: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.EnvBuilder(symlinks=True, with_pip=not _has_pip()).create(folder)
    except subprocess.CalledProcessError as error:
        raise BackendError("there is no pip here", remedy="python -m pip must work where agents are started") from error
    here = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "posix_prefix", vars=here))
    # A virtual environment inherits only what is below the base interpreter, and this may be one itself. Unlike plain
    # paths, addsitedir also reads the .pth files there: installations in editable mode are made of them.
    lines = [f"import site; site.addsitedir({parent!r})\n" for parent in parents]
    (packages / "rolemesh_parents.pth").write_text("".join(lines))
    constraints = folder / "constraints.txt"
    constraints.write_text(f"rolemesh=={version('rolemesh')}\n")
    try:
        install(str(folder / "bin" / "python"), environment.pip, constraints, lock, say)
    except BackendError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / MADE).touch()


def _enter(folder: str) -> None:
    try:
        if folder:
            os.chdir(folder)
    except OSError as error:
        raise BackendError(
            f"{folder} cannot be used: {error.strerror}", remedy="working_dir must be there, at one path, on every node"
        ) from error


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    pass_over(signal.SIGINT)
    control = socket.socket(fileno=int(sys.argv[1]))
    parcel = parcels.receive(control)
    if parcel is None or parcel[1] is None:
        return
    environment = msgspec.msgpack.decode(parcel[1], type=Environment)

    def tell(message: zygote.ZygoteMessage) -> None:
        control.send(msgspec.msgpack.encode(message))

    try:
        python = interpreter(
            environment, lambda text: tell(zygote.Making(f"environment of {environment.where}: {text}"))
        )
        _enter(environment.working_dir)
    except BackendError as error:
        why = BackendError(error.what, where=environment.where, remedy=error.remedy)
        tell(zygote.Broken(None, f"its environment could not be made: {why}", "environment"))
        return
    if environment.pip:
        folder = Path(python).parents[1]
        os.environ.pop("PYTHONHOME", None)  # as activating an environment does
        os.environ["VIRTUAL_ENV"] = str(folder)
        os.environ["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)])
    os.execv(python, [python, "-P", "-m", "rolemesh_durable.agent.zygote", *sys.argv[1:]])


if __name__ == "__main__":
    main()
