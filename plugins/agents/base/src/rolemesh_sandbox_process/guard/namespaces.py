"""A process's own view of the machine: read-only files, a private /tmp, no devices, no network, no other processes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rolemesh_sandbox_process.guard.kernel import CLONE, mount, pivot, read_only, unmount, unshare

__all__ = ["INSIDE", "enter", "loopback", "prepare"]

INSIDE: Final = "/tmp/sandbox"
"""Path of the folder inside of the namespaces. It is fixed, so that outputs do not depend on the real path."""
_HIDDEN: Final = ("/tmp", "/run", "/dev")
"""Folders in whose place commands see an empty one: they have sockets of services, devices, and others' files."""
_MODES: Final = {"/dev": "755"}
"""Linux lets nobody but their owner open devices with O_CREAT in a folder that all may write, as the shell's
``> /dev/null`` does."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
_HOST: Final = "sandbox"
"""Name of the machine that commands see, so that outputs do not depend on the node."""
_HOSTS: Final = os.path.join(os.path.dirname(__file__), "hosts")
_BIND, _RECURSIVE, _PRIVATE, _NOSUID, _NODEV, _NOEXEC = 4096, 16384, 1 << 18, 2, 4, 8
_PATH: Final = os.O_PATH | os.O_CLOEXEC
_FIRST_PIDS = 300
"""Process numbers that Linux does not use again."""


def enter(network: bool) -> None:
    """Move this process into new namespaces, as the same user without rights outside of them. Its next child is the
    first process there, and calls `prepare`.
    """
    user, group = os.getuid(), os.getgid()
    unshare(sum(flag for name, flag in CLONE.items() if not (network and name == "network")))
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{file}", text)


def prepare(setup: Mapping[str, Any]) -> None:
    """Build the view: only the folder, which is at `inside` there, and /tmp and /dev/shm are writable. Paths in `keep`
    stay visible, even below a hidden folder. /tmp and /dev/shm are in memory, and end with the namespaces. The machine
    has a fixed name, which is an address of its own like ``localhost``.

    With a `root`, commands see that folder's files instead of the machine's.
    """
    limits, inside, root = setup["limits"], setup["inside"], setup["root"]
    size = f"size={int(limits['disk_mb'] * 1e6)}"
    own = os.open(setup["folder"], _PATH)
    kept = {path: os.open(path, _PATH) for path in setup["keep"] if root or _below(path, _HIDDEN)}
    devices = {f"/dev/{name}": os.open(f"/dev/{name}", _PATH) for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    files = _own_files(limits["network"])
    socket.sethostname(_HOST)
    mount("none", "/", "", _RECURSIVE | _PRIVATE)
    if root:
        _enter_root(root, size)
    for path in _HIDDEN:
        mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"{size},mode={_MODES.get(path, '1777')}")
    for path, opened in {**devices, **kept, inside: own}.items():
        _bind(opened, path)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, f"{size},mode=1777")
    os.mkdir("/dev/pts")
    with suppress(OSError):  # the kernel has no terminals, and an open of one says so
        mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for path, text in files.items():
        _show(text, path, root=bool(root))
    if root:
        unmount(".")
        os.chdir("/")
    else:
        mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    _restrict(limits)
    read_only("/", recursive=True)
    for path in ("/tmp", "/dev/shm", inside):
        read_only(path, on=False)
    if not limits["network"]:
        loopback()


def _enter_root(root: str, size: str) -> None:
    """Make a view of the folder `root` the root of this process. The old root is still the working directory.

    The view is an overlay in memory, since the folder may lack the places for other mounts.
    """
    lower = os.open(root, _PATH)
    mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, size)
    for name in ("changes", "work", "root"):
        os.mkdir(f"/tmp/{name}")
    layers = f"lowerdir=/proc/self/fd/{lower},upperdir=/tmp/changes,workdir=/tmp/work,userxattr"
    mount("overlay", "/tmp/root", "overlay", _NOSUID | _NODEV, layers)
    for path in ("/proc", *_HIDDEN):
        os.makedirs(f"/tmp/root{path}", exist_ok=True)
    mount("proc", "/tmp/root/proc", "proc", _NOSUID | _NODEV)
    os.chdir("/tmp/root")
    pivot()


def _own_files(network: bool) -> dict[str, str]:
    """Return the files with the names of this machine, as docker writes them. With a `network`, the names of others
    follow.
    """
    with open(_HOSTS, encoding="ascii") as file:
        hosts = file.read()
    if network:
        with suppress(FileNotFoundError), open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            hosts += file.read()
    return {"/etc/hosts": hosts, "/etc/hostname": f"{_HOST}\n"}


def _show(text: str, path: str, *, root: bool) -> None:
    """Let commands read `text` at `path`. The view of a `root` gets such a file; a file of the machine is covered, if
    there is one.
    """
    if not root and not os.path.isfile(path):
        return
    place = path if root else f"/run{path}"
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(place)
    with open(place, "w", encoding="utf-8") as file:
        file.write(text)
    if not root:
        mount(place, path, "", _BIND)


def _restrict(limits: Mapping[str, Any]) -> None:
    """Let commands make no namespaces of their own, and few processes.

    Linux before 6.14 has one limit of process numbers for all namespaces, which only root of the machine may change.
    """
    _write("/proc/sys/user/max_user_namespaces", "0")
    with suppress(OSError):
        _write("/proc/sys/kernel/pid_max", str(_FIRST_PIDS + 4 * limits["processes"] + 64))


def _bind(opened: int, path: str) -> None:
    source = f"/proc/self/fd/{opened}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(source, path, "", _BIND | _RECURSIVE)


def loopback() -> None:
    """Start the interface ``lo``, over which processes of the sandbox reach each other."""
    with suppress(OSError), socket.socket() as asked:
        fcntl.ioctl(asked, 0x8914, struct.pack("16sH14x", b"lo", 1))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(os.path.commonpath((path, folder)) == folder for folder in folders)


def _write(path: str, text: str) -> None:
    opened = os.open(path, os.O_WRONLY)
    try:
        os.write(opened, text.encode())
    finally:
        os.close(opened)
