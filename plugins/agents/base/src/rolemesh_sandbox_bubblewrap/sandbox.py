"""The sandbox `bubblewrap`, and the arguments of ``bwrap``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_process import INSIDE, GuardedOptions, GuardedSandbox, Isolation
from rolemesh_sandbox_process.client import PACKAGE

__all__ = ["BubblewrapOptions", "BubblewrapSandbox", "arguments"]

_OLDEST = (0, 8)
"""The first version with ``--disable-userns``."""
_INSTALL = "apt install bubblewrap, dnf install bubblewrap, or the like; the sandbox `guarded` does not need it"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = ("alternatives", "group", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "ssl/certs")
"""Parts of /etc that programs need. The others may have secrets."""
_NETWORK = ("hosts", "resolv.conf", "services", "protocols")


class BubblewrapOptions(GuardedOptions, extra="forbid"):
    """Options of the sandbox `bubblewrap`."""

    bwrap: str = Field("bwrap", description="the program: a name on the path, or a path")
    visible: list[str] = Field(
        default_factory=list, description="further files and folders that commands can read, as absolute paths"
    )


class BubblewrapSandbox(GuardedSandbox):
    """Runs commands below `bwrap`. They see the system's programs, Python and their folder, and no other files.

    They have no network, no other processes, and no capabilities.
    """

    Options: ClassVar[type[BaseModel]] = BubblewrapOptions
    options: BubblewrapOptions

    def isolation(self, folder: Path, limits: Limits) -> Isolation:
        """Return how `bwrap` starts commands. Raises `AgentError` if it is missing, old, or refused by the kernel."""
        program = self.program()
        prefix = [program, *arguments(str(folder.resolve()), limits, [*self.visible(limits), *self.options.visible])]
        found = Isolation("prefix", INSIDE, private=True, prefix=tuple(prefix), own_users=True)
        if refusal := self.refusal(folder, limits, found):
            remedy = "allow namespaces (sysctl kernel.unprivileged_userns_clone=1, an AppArmor profile for bwrap, …)"
            raise AgentError(f"bubblewrap cannot start commands: {refusal}", where=program, remedy=remedy)
        return found

    def program(self) -> str:
        """Return the path of `bwrap`. Raises `AgentError` if it is missing or too old."""
        program = shutil.which(self.options.bwrap)
        if program is None:
            raise AgentError(f"there is no bubblewrap: {self.options.bwrap} is not on the path", remedy=_INSTALL)
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()
        if told[:1] != ["bubblewrap"] or tuple(map(int, told[1].split(".")[:2])) < _OLDEST:
            found = " ".join(told) or "a program without a version"
            remedy = f"install bubblewrap {'.'.join(map(str, _OLDEST))} or newer"
            raise AgentError(f"{found} is too old, or another program", where=program, remedy=remedy)
        return program


def arguments(folder: str, limits: Limits, visible: Sequence[str]) -> list[str]:
    """Return the arguments of `bwrap` before the command. Commands can read the paths in `visible`, too.

    /proc is read-only, since root could otherwise change settings of the kernel. The root of the files is in memory
    and read-only. /tmp and /dev/shm are in memory, each of the size of the limit of the disk.
    """
    size = str(int(limits.disk_mb * 1e6))
    found = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--as-pid-1"]
    found += ["--share-net"] if limits.network else []
    found += ["--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for path in _SYSTEM:
        if os.path.islink(path):
            found += ["--symlink", os.readlink(path), path]
        else:
            found += ["--ro-bind-try", path, path]
    for name in (*_SETTINGS, *(_NETWORK if limits.network else ())):
        found += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    if not limits.network:
        found += ["--ro-bind", f"{PACKAGE}/rolemesh_sandbox_process/guard/hosts", "/etc/hosts"]
    found += [
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--dev",
        "/dev",
        "--size",
        size,
        "--tmpfs",
        "/dev/shm",
        "--remount-ro",
        "/dev",
    ]
    found += ["--size", size, "--tmpfs", "/tmp"]
    for path in visible:
        found += ["--ro-bind", path, path]
    return [*found, "--bind", folder, INSIDE, "--remount-ro", "/", "--chdir", INSIDE, "--"]
