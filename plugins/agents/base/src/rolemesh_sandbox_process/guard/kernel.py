"""System calls that Python lacks: namespaces, mounts, capabilities, and options of processes."""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = [
    "CLONE",
    "die_with",
    "drop_capabilities",
    "fixed_addresses",
    "mount",
    "no_new_privileges",
    "pivot",
    "read_only",
    "subreaper",
    "unmount",
    "unshare",
    "untraceable",
]

CLONE: Final = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "network": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
"""Flags of unshare(2), by the namespace that they make."""
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS, _AMBIENT, _AMBIENT_CLEAR = 1, 4, 24, 36, 38, 47, 4
_MOUNT_SETATTR, _AT_RECURSIVE, _RDONLY, _AT_FDCWD = 442, 0x8000, 1, -100
_DETACH = 2
_NO_RANDOM_ADDRESSES = 0x0040000
_PIVOT_ROOT = {"x86_64": 155}
"""Numbers of pivot_root(2); on newer architectures it is 41."""
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def unshare(flags: int) -> None:
    """Move this process into new namespaces. A new pid namespace begins with its next child."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Call mount(2)."""
    texts = [os.fsencode(each) for each in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(data)), f"mount {kind or 'bind'} on {target}")


def pivot() -> None:
    """Make the working directory, a mount, the root of this process. The old root is then below it at the same place;
    the working directory is in the old one until `unmount` of ``"."``.
    """
    number = ctypes.c_long(_PIVOT_ROOT.get(os.uname().machine, 41))
    _check(_libc.syscall(number, b".", b"."), "pivot_root")


def unmount(path: str) -> None:
    """Take a mount and those below it out of this namespace."""
    _check(_libc.umount2(os.fsencode(path), _DETACH), f"umount {path}")


def read_only(path: str, *, on: bool = True, recursive: bool = False) -> None:
    """Make a mount read-only, or writable again (mount_setattr(2), Linux 5.12)."""
    attributes = _Attributes(_RDONLY if on else 0, 0 if on else _RDONLY, 0, 0)
    flags, size = ctypes.c_uint(_AT_RECURSIVE if recursive else 0), ctypes.c_size_t(ctypes.sizeof(attributes))
    target = (ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), os.fsencode(path))
    _check(_libc.syscall(*target, flags, ctypes.byref(attributes), size), f"mount_setattr {path}")


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends. Ends at once if the parent is gone already."""
    _prctl(_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)


def subreaper() -> None:
    """Become the parent of all descendants whose own parent ends."""
    _prctl(_SUBREAPER, 1)


def untraceable() -> None:
    """Forbid other processes of this user to trace this one, or to take its descriptors, until it starts a program."""
    _prctl(_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Forbid this process and its descendants to gain privileges from setuid files."""
    _prctl(_NO_NEW_PRIVS, 1)


def fixed_addresses() -> None:
    """Let programs that this process executes have the same addresses each time, where the kernel allows it: they print
    them, as in ``<object at 0x…>``, and a repeated command must print the same.
    """
    _libc.personality(ctypes.c_ulong(_NO_RANDOM_ADDRESSES))


def drop_capabilities() -> None:
    """Give up all capabilities, so that user 0 cannot regain them by executing a file."""
    for number in range(_CAPABILITIES):
        _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    header, nothing = _Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
