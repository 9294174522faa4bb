"""Gather the facts about this machine. Each function runs in a process of its own, and may hang or raise."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import platform
import re
import resource
import socket
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import unquote, urlparse

import msgspec

from rolemesh.api.import_ref import find_module
from rolemesh.errors import PluginError
from rolemesh.kinds.installed import distribution, entry_points, how_to_install, leftovers, version
from rolemesh.kinds.offered import OFFERED, RENAMED
from rolemesh.placement.nodes import group_limits, memory_limit
from rolemesh.plugins.defaults import DEFAULTS
from rolemesh.plugins.discovery import discover
from rolemesh.plugins.static import looked_at
from rolemesh_doctor import facts

__all__ = ["abilities", "clock", "disk", "host", "installation", "limits", "network", "plugins", "python", "ray", "shm"]
__all__ += ["torch", "working_dir"]

CLONE_NEWUSER = 0x10000000
PR_GET_PDEATHSIG = 2
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")
"""File in which Ray records the address of the cluster that `ray start` started on this machine."""
HIDEABLE = ("numpy", "ray", "torch", "transformers", "vllm")
"""Packages, besides Python's own, that a file in the working directory must not hide."""
WAIT_S = 0.05


def python() -> facts.Python:
    """Return facts about this interpreter."""
    return facts.Python(
        sys.version_info[:3],
        sys.executable,
        platform.system(),
        64 if sys.maxsize > 1 << 32 else 32,
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        multiprocessing.get_start_method(),
    )


def torch() -> facts.Torch:
    """Return the build from torch's ``version.py``, because importing torch takes seconds."""
    driver, spec = _driver(), find_module("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        return facts.Torch(driver=driver)
    text = Path(folders[0], "version.py").read_text(encoding="utf-8")
    said = {name: _said(text, name) for name in ("__version__", "cuda", "hip")}
    return facts.Torch(said["__version__"] or version("torch"), said["cuda"], said["hip"], driver)


def _said(text: str, name: str) -> str:
    found = re.search(rf"^{name}\b[^=]*= *['\"]([^'\"]*)", text, re.MULTILINE)
    return found[1] if found else ""


def _driver() -> facts.Driver | None:
    """Ask the driver's own library, which creates no CUDA context."""
    told, number, cuda = Path("/proc/driver/nvidia/version"), "", None
    if told.exists():
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", told.read_text())
        number = found[1] if found else "?"
    with suppress(OSError):
        library, newest = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(newest)) == 0 and newest.value:
            cuda = newest.value // 1000, newest.value % 1000 // 10
    if not number and cuda is None:
        return None
    return facts.Driver(number or "?", cuda, len([*Path("/dev").glob("nvidia[0-9]*")]))


def ray() -> facts.Ray:
    """Return the installed Ray, and the cluster that runs here."""
    wanted = _wanted_ray()
    if find_module("ray") is None:
        return facts.Ray(wanted=wanted)
    with suppress(PluginError):
        number = version("ray")
        try:
            import_module("ray")
        except BaseException as error:
            return facts.Ray(number, wanted, f"{type(error).__name__}: {error}")
        named = "RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") else str(CURRENT_CLUSTER)
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and CURRENT_CLUSTER.exists():
            address = CURRENT_CLUSTER.read_text().strip()
        if not address or address in ("auto", "local"):
            return facts.Ray(number, wanted)
        return facts.Ray(number, wanted, "", address, named, _unreachable(address))
    return facts.Ray(wanted=wanted)


def _wanted_ray() -> str | None:
    with suppress(PluginError):
        for need in distribution("rolemesh-ray").requires or ():
            if found := re.match(r"ray(?:\[[^]]*\])? *==([\w.]+)", need):
                return found[1]
        return ""
    return None


def _unreachable(address: str) -> str:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, ValueError) as error:
        return _why(error)
    return ""


def shm(folder: str = "/dev/shm") -> facts.SharedMemory:
    """Return the space for values and snapshots."""
    try:
        at = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, 4096)
    except OSError as error:
        return facts.SharedMemory(error=_why(error))
    most = int(memory_limit())  # what is in shared memory counts for it
    return facts.SharedMemory(min(at.f_blocks * at.f_frsize, most), min(at.f_bavail * at.f_frsize, most))


def limits() -> facts.Limits:
    """Return the hard limits. Agents raise their soft limits to these."""

    def hard(which: int) -> int | None:
        most = resource.getrlimit(which)[1]
        return None if most == resource.RLIM_INFINITY else most

    return facts.Limits(
        hard(resource.RLIMIT_NOFILE),
        hard(resource.RLIMIT_NPROC),
        _threads_of_user(),
        _pids_left(),
        hard(resource.RLIMIT_MEMLOCK),
        any(Path("/sys/class/infiniband").glob("*")),
        os.geteuid() == 0,
    )


def _threads_of_user() -> int:
    """Return the number of processes and threads of this user, which all count for the limit."""
    used, me = 0, os.getuid()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and process.stat().st_uid == me:
                used += len(os.listdir(process / "task"))
    return used


def _pids_left() -> int | None:
    """Return the number of further processes that the control group, and each of its parents, allows."""
    left = [max(0, int(most - used)) for most, used in group_limits("pids.max", "pids.current")]
    return min(left, default=None)


def abilities() -> facts.Abilities:
    """Try each system call once."""
    tried = {
        "fork": _fork,
        "pidfd": lambda: os.close(os.pidfd_open(os.getpid())),
        "eventfd": lambda: os.close(os.eventfd(0)),
        "memfd": lambda: os.close(os.memfd_create("doctor")),
        "prctl": lambda: _call("prctl", PR_GET_PDEATHSIG, ctypes.byref(ctypes.c_int()), 0, 0, 0),
        "seqpacket": _seqpacket,
    }
    calls = {}
    for name, call in tried.items():
        try:
            call()
            calls[name] = ""
        except (OSError, AttributeError) as error:
            calls[name] = _why(error)
    try:
        _call("unshare", CLONE_NEWUSER)  # this process ends soon
        return facts.Abilities(calls)
    except OSError as error:
        return facts.Abilities(calls, _why(error))


def _seqpacket() -> None:
    for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET):
        end.close()


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def network() -> facts.Network:
    """Try a connection over the loopback, and read the range of ports."""
    loopback = ""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2.0),
        ):
            server.settimeout(2.0)
            server.accept()[0].close()
    except OSError as error:
        loopback = _why(error)
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return facts.Network(loopback, int(last) - int(first) + 1)


def host() -> facts.Host:
    """Check whether this machine's name resolves to one of its addresses. A name server may not answer."""
    name = socket.gethostname()
    try:
        family, kind, _, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as own:
            own.bind(address)
    except OSError as error:
        return facts.Host(name, _why(error))
    return facts.Host(name)


def disk(folder: Path) -> facts.Disk:
    """Return facts about `folder`, or about its nearest existing parent."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return facts.Disk(str(folder), error=f"{there} is no folder")
    try:
        at = os.statvfs(there)
        with tempfile.NamedTemporaryFile(dir=there, prefix=".rolemesh-doctor-") as file:
            file.write(bytes(4096))
            file.flush()
            lock_error = ""
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock_error = _why(error)
    except OSError as error:
        return facts.Disk(str(folder), error=_why(error))
    files = at.f_favail if at.f_files else -1
    return facts.Disk(str(folder), at.f_bavail * at.f_frsize, files, "", lock_error)


def clock(folder: Path) -> facts.Clock:
    """Compare the clocks over a short wait, and read the time that the file system of `folder` gives a new file."""
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(WAIT_S)
    wall_s, monotonic_s = time.time() - wall, time.monotonic() - monotonic
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    ahead_s = 0.0
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=there, prefix=".rolemesh-doctor-") as file:  # see `disk`
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        ahead_s = os.stat(file.name).st_mtime - time.time()
    return facts.Clock(time.time(), ahead_s, wall_s, monotonic_s)


def plugins() -> facts.Plugins:
    """Return the installed plugins without importing any."""
    records = [looked_at(record) for record in discover()]
    broken, duplicate = list[facts.Trouble](), list[facts.Trouble]()
    for record in records:
        if record.status in ("broken", "incompatible"):
            again = how_to_install(record.distribution, f"--force-reinstall {record.distribution}")
            broken.append((f"{record.what} is broken: {record.error}", again))
        elif record.status == "duplicate":
            remedy = f"pip uninstall {record.distribution}, or write {record.distribution}:{record.name} in job files"
            duplicate.append((f"the name of {record.what} is {record.error}", remedy))
    usable = sum(record.status == "available" for record in records)
    return facts.Plugins(usable, tuple(broken), tuple(duplicate), tuple(_shadowed()))


def _shadowed() -> list[facts.Trouble]:
    """Return distributions whose code is imported from another place than they are installed in."""
    found = []
    code = [point for point in entry_points() if point.group not in (DEFAULTS, OFFERED, RENAMED)]
    ours = {(point.dist.name, point.module.partition(".")[0]) for point in code if point.dist}
    for name, module in sorted(ours):
        spec, places = find_module(module), _places(name)
        if spec is None or not spec.origin:
            continue
        package = Path(spec.origin).parent.resolve()
        if not any(package.is_relative_to(place) for place in places):
            what = f"{module} is imported from {package}, and {name} {version(name)} is installed in {places[0]}"
            found.append((what, f"take {package.parent} out of PYTHONPATH, or start jobs from another folder"))
    return found


def _places(name: str) -> list[Path]:
    """Return the places of a distribution's code: beside its metadata, and the source folder of an editable
    installation."""
    at = distribution(name)
    places = [Path(str(at.locate_file(""))).resolve()]
    about = msgspec.json.decode(at.read_text("direct_url.json") or "{}")
    if about.get("dir_info", {}).get("editable"):
        places.append(Path(unquote(urlparse(about["url"]).path)).resolve())
    return places


def installation() -> facts.Installation:
    """Return the leftovers of interrupted installations."""
    left = [(f"{each.where}: {each.what}", each.remedy or "") for each in leftovers()]
    half = tuple(each for each in left if "pip install" in each[1])
    return facts.Installation(tuple(each for each in left if each not in half), half)


def working_dir() -> facts.WorkingDir:
    """Return modules in the working directory that have the name of another module."""
    try:
        folder = Path.cwd()
        there = sorted(folder.iterdir())
    except OSError as error:
        return facts.WorkingDir("", error=_why(error))
    names = {*sys.stdlib_module_names, *HIDEABLE}
    others = [path for path in sys.path if path and Path(path).resolve() != folder.resolve()]
    hides = []
    for path in there:
        package = path.is_dir() and (path / "__init__.py").is_file()
        name = path.name if package else path.stem if path.suffix == ".py" else ""
        if name in names and (name in sys.stdlib_module_names or PathFinder.find_spec(name, others)):
            hides.append(path.name)
    return facts.WorkingDir(str(folder), tuple(hides))


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
