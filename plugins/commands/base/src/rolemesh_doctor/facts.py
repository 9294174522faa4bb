"""Facts about a machine, as plain records. `rolemesh_doctor.judge` turns them into findings."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = [
    "Abilities",
    "Clock",
    "Disk",
    "Driver",
    "Host",
    "Installation",
    "Limits",
    "Network",
    "Plugins",
    "Python",
    "Ray",
    "SharedMemory",
    "Torch",
    "WorkingDir",
]

Trouble: TypeAlias = tuple[str, str]
"""A problem, and the remedy."""


class Python(msgspec.Struct, frozen=True):
    """The interpreter. `version` is (major, minor, micro); `start_method` is the default of multiprocessing."""

    version: tuple[int, int, int]
    executable: str
    system: str
    bits: int = 64
    free_threaded: bool = False
    start_method: str = "fork"


class Driver(msgspec.Struct, frozen=True):
    """NVIDIA's driver: its version, the newest CUDA version that it supports as (major, minor), and the number of
    GPUs."""

    version: str
    cuda: tuple[int, int] | None = None
    gpus: int = 0


class Torch(msgspec.Struct, frozen=True):
    """The installed torch, read without importing it. `version` is None if it is missing; `cuda` and `hip` are "" for
    other builds."""

    version: str | None = None
    cuda: str = ""
    hip: str = ""
    driver: Driver | None = None


class Ray(msgspec.Struct, frozen=True):
    """The installed Ray.

    `wanted` is the version that rolemesh-ray requires; None if rolemesh-ray is not installed. `cluster` is the address
    of a running Ray, and `named` is the variable or file that gives this address. `unreachable` is the reason why no
    connection to it succeeds; "" if one does.
    """

    version: str | None = None
    wanted: str | None = None
    import_error: str = ""
    cluster: str = ""
    named: str = ""
    unreachable: str = ""


class SharedMemory(msgspec.Struct, frozen=True):
    """``/dev/shm``: total and free bytes. `error` says why it cannot be written, "" if it can."""

    total: int = 0
    free: int = 0
    error: str = ""


class Limits(msgspec.Struct, frozen=True):
    """Limits of this process; None for no limit. `pids` is the number of further processes that the container allows.

    `memlock` is in bytes. `fabric` says whether there is RDMA hardware, which needs locked memory.
    """

    files: int | None = None
    processes: int | None = None
    used: int = 0
    pids: int | None = None
    memlock: int | None = None
    fabric: bool = False
    root: bool = False


class Abilities(msgspec.Struct, frozen=True):
    """System calls: the name of each, and why it failed, "" if it did not."""

    calls: dict[str, str] = {}
    user_namespaces: str = ""


class Network(msgspec.Struct, frozen=True):
    """Why a connection over the loopback fails, "" if it works; and the number of ports for connections."""

    loopback: str = ""
    ports: int = 28_232


class Host(msgspec.Struct, frozen=True):
    """This machine's host name, and why it has no address of this machine, "" if it has one."""

    name: str
    error: str = ""


class Disk(msgspec.Struct, frozen=True):
    """A folder: free bytes and files, why it cannot be written, and why locks do not work there.

    `files` is -1 if the file system does not count them.
    """

    path: str
    free: int = 0
    files: int = -1
    error: str = ""
    lock_error: str = ""


class Clock(msgspec.Struct, frozen=True):
    """Seconds since 1970 (`now`), how far the file system's time is ahead of it, and the speed of the two clocks.

    `wall_s` and `monotonic_s` are the durations that each clock measured for the same short wait.
    """

    now: float
    file_system_ahead_s: float = 0.0
    wall_s: float = 0.0
    monotonic_s: float = 0.0


class Plugins(msgspec.Struct, frozen=True):
    """Number of usable plugins, and those that are broken, duplicate, or imported from another place than installed."""

    usable: int
    broken: tuple[Trouble, ...] = ()
    duplicate: tuple[Trouble, ...] = ()
    shadowed: tuple[Trouble, ...] = ()


class Installation(msgspec.Struct, frozen=True):
    """Leftovers of interrupted installations. `half` are distributions without any usable metadata."""

    leftovers: tuple[Trouble, ...] = ()
    half: tuple[Trouble, ...] = ()


class WorkingDir(msgspec.Struct, frozen=True):
    """The working directory: files in it that hide a module that jobs import, and why it cannot be read, or ""."""

    path: str
    hides: tuple[str, ...] = ()
    error: str = ""
