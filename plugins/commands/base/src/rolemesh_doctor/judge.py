"""Turn facts into findings. Pure: this module does not read from the machine."""

from __future__ import annotations

from collections.abc import Iterator

from rolemesh_doctor.facts import (
    Abilities,
    Clock,
    Disk,
    Host,
    Installation,
    Limits,
    Network,
    Plugins,
    Python,
    Ray,
    SharedMemory,
    Torch,
    WorkingDir,
)
from rolemesh_doctor.finding import Finding, Status

__all__ = ["abilities", "clock", "disk", "host", "installation", "limits", "network", "plugins", "python", "ray", "shm"]
__all__ += ["tmp", "torch", "working_dir"]

NEWEST = (3, 13)
"""The newest Python version that the project's tests run on."""
SHM_BYTES = 1_000_000_000
"""Bytes of shared memory below which the values and snapshots of a model soon fill it."""
SHM_FREE_BYTES = 256_000_000
FILES, FEWEST_FILES = 4096, 256
"""Number of open files that one process of a large job needs, and of a small one."""
PROCESSES, FEWEST_PROCESSES = 512, 64
MEMLOCK_BYTES = 1 << 30
PORTS = 1000
DISK_BYTES, LEAST_DISK_BYTES = 10_000_000_000, 500_000_000
DISK_FILES = 10_000
TMP_BYTES = 100_000_000
EARLIEST = 1_704_067_200.0
"""Earliest plausible time: 2024-01-01. An earlier clock is not set."""
AHEAD_S, STEP_S = 2.0, 0.5
PYPI, CPU_INDEX = "https://pypi.org/simple", "https://download.pytorch.org/whl/cpu"


def python(facts: Python) -> Iterator[Finding]:
    """Judge Python's version, the system, and the start method of processes."""
    version = ".".join(map(str, facts.version))
    here = f"Python {version} on {facts.system} ({facts.executable})"
    if facts.system != "Linux":
        yield Finding("python", "error", f"{here}: jobs run on Linux only", "run it in a Linux container or machine")
    elif facts.version < (3, 11):
        yield Finding("python", "error", f"{here} is too old", "python3.11 -m venv .venv, and install rolemesh there")
    elif facts.bits != 64:
        yield Finding("python", "error", f"{here} has {facts.bits} bits", "install a Python of 64 bits")
    elif facts.version[:2] > NEWEST:
        newest = ".".join(map(str, NEWEST))
        what = f"{here} is newer than {newest}, the newest version that rolemesh is tested with"
        yield Finding("python", "warning", what, f"python{newest} -m venv .venv, and install rolemesh there")
    elif facts.free_threaded:
        what, remedy = f"{here} is a build without the GIL, which rolemesh is not tested with", "use the usual build"
        yield Finding("python", "warning", what, remedy)
    else:
        yield Finding("python", "ok", here)
    what = f"multiprocessing starts processes by {facts.start_method}; ranks are forked whatever it is"
    yield Finding("start-method", "ok", what)


def torch(facts: Torch) -> Iterator[Finding]:
    """Judge torch's build against the driver."""
    driver = facts.driver
    if driver is None:
        beside = "no NVIDIA driver"
    else:
        newest = f", CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda else ""
        beside = f"NVIDIA driver {driver.version}{newest}, {driver.gpus} GPU{'' if driver.gpus == 1 else 's'}"
    if facts.version is None:
        yield Finding("torch", "ok", f"torch is not installed, and needed only by roles that train or sample; {beside}")
        return
    public = facts.version.partition("+")[0]
    build = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPU"
    here = f"torch {facts.version} is a {build} build; {beside}"
    again = f"pip install --force-reinstall torch=={public} --index-url"
    if driver is not None and build == "CPU":
        yield Finding("torch", "warning", f"{here}: no role uses the GPUs", f"{again} {PYPI}")
    elif driver is None and facts.cuda:
        remedy = f"install NVIDIA's driver; or, to save room: {again} {CPU_INDEX}"
        yield Finding("torch", "warning", f"{here}: it runs on the CPU and takes gigabytes more", remedy)
    elif driver is not None and driver.cuda and facts.cuda and int(facts.cuda.split(".")[0]) > driver.cuda[0]:
        remedy = (
            f"update NVIDIA's driver, or {again} https://download.pytorch.org/whl/cu{driver.cuda[0]}{driver.cuda[1]}"
        )
        yield Finding("torch", "error", f"{here}: the driver is too old for it", remedy)
    elif driver is not None and not driver.gpus:
        remedy = "start the container with the GPUs: docker run --gpus all …"
        yield Finding("torch", "warning", f"{here}: the driver shows no GPU to this process", remedy)
    else:
        yield Finding("torch", "ok", here)


def ray(facts: Ray) -> Iterator[Finding]:
    """Judge Ray's version, its import, and the cluster."""
    exactly = f"pip install 'ray=={facts.wanted}'" if facts.wanted else "pip install 'rolemesh[ray]'"
    if facts.version is None and facts.wanted is None:
        yield Finding("ray", "ok", "Ray is not installed; jobs run with --backend local")
    elif facts.version is None:
        yield Finding("ray", "error", "rolemesh-ray is installed, and Ray is not", exactly)
    elif facts.import_error:
        what = f"Ray {facts.version} cannot be imported: {facts.import_error}"
        yield Finding("ray", "error", what, exactly.replace("install", "install --force-reinstall"))
    elif facts.wanted is None:
        yield Finding("ray", "ok", f"Ray {facts.version}, which no job uses: rolemesh-ray is not installed")
    else:
        yield from _cluster(facts, exactly)


def _cluster(facts: Ray, exactly: str) -> Iterator[Finding]:
    if facts.wanted and facts.version != facts.wanted:
        what = f"Ray {facts.version} is installed, and rolemesh-ray is made for {facts.wanted}"
        yield Finding("ray", "warning", what, f"on every node: {exactly}")
    if facts.unreachable:
        what = f"{facts.named} names the Ray at {facts.cluster}, which cannot be reached: {facts.unreachable}"
        remedy = "unset RAY_ADDRESS, or start that Ray" if facts.named == "RAY_ADDRESS" else f"rm -f {facts.named}"
        yield Finding("ray", "warning", what, remedy)
    elif facts.cluster:
        yield Finding("ray", "ok", f"Ray {facts.version}; the one at {facts.cluster} can be reached")
    else:
        yield Finding("ray", "ok", f"Ray {facts.version}; none runs here, and a job starts its own")


def shm(facts: SharedMemory) -> Iterator[Finding]:
    """Judge the space in ``/dev/shm``."""
    remedy = "of a container: docker run --shm-size 8g …; else, as root: mount -o remount,size=8G /dev/shm"
    room = f"/dev/shm has {_gb(facts.free)} free of {_gb(facts.total)}"
    if facts.error:
        what = f"/dev/shm cannot be written ({facts.error}): values and snapshots go through /tmp, on the disk"
        yield Finding("shm", "warning", what, "mount it, as root: mount -t tmpfs -o size=8G,mode=1777 tmpfs /dev/shm")
    elif facts.total < SHM_BYTES:
        what = f"{room}: values between ranks and snapshots of their state soon fill it"
        yield Finding("shm", "warning", what, remedy)
    elif facts.free < SHM_FREE_BYTES:
        yield Finding("shm", "warning", f"{room}: it is nearly full", "see who fills it: du -sh /dev/shm/*")
    else:
        yield Finding("shm", "ok", room)


def limits(facts: Limits) -> Iterator[Finding]:
    """Judge the limits of open files, processes and locked memory."""
    found = list(_limits(facts))
    files = "any number of" if facts.files is None else f"{facts.files:,}"
    more = _more(facts)
    processes = "any number of" if more is None else f"{more:,} more"
    what = f"a process may open {files} files; {processes} processes may be started"
    yield from found or [Finding("limits", "ok", what)]


def _more(facts: Limits) -> int | None:
    """Return the number of further processes. The user's limit does not apply to root."""
    own = None if facts.processes is None or facts.root else max(0, facts.processes - facts.used)
    known = [number for number in (own, facts.pids) if number is not None]
    return min(known, default=None)


def _limits(facts: Limits) -> Iterator[Finding]:
    container = "of a container: docker run --ulimit nofile=65536:65536 …"
    if facts.files is not None and facts.files < FILES:
        remedy = f"{container}; else: ulimit -n 65536" if facts.root else f"{container}; else, as root, write "
        remedy += "" if facts.root else "'* hard nofile 65536' to /etc/security/limits.conf, and log in again"
        status: Status = "error" if facts.files < FEWEST_FILES else "warning"
        what = f"a process may open {facts.files:,} files at most; sockets and shared memory count"
        yield Finding("limits", status, what, remedy)
    more = _more(facts)
    if more is not None and more < PROCESSES:
        by_container = more == facts.pids
        remedy = "docker run --pids-limit 4096 …" if by_container else "ulimit -u 4096"
        graver: Status = "error" if more < FEWEST_PROCESSES else "warning"
        whose = "the container" if by_container else "this user"
        what = f"{whose} may start {more:,} more processes and threads; each rank needs about ten"
        yield Finding("limits", graver, what, remedy)
    if facts.fabric and facts.memlock is not None and facts.memlock < MEMLOCK_BYTES:
        what = f"a process may lock {facts.memlock:,} bytes of memory; NCCL over RDMA needs more"
        remedy = "of a container: docker run --ulimit memlock=-1 …; else, as root: ulimit -l unlimited"
        yield Finding("limits", "warning", what, remedy)


NEEDED = {
    "fork": "raise the number of processes: ulimit -u 4096",
    "prctl": "run it on Linux, outside of gVisor or a strict seccomp profile",
    "eventfd": "allow eventfd2 in the container's seccomp profile: docker run --security-opt seccomp=unconfined …",
    "memfd": "allow memfd_create in the container's seccomp profile: docker run --security-opt seccomp=unconfined …",
    "seqpacket": "allow sockets of the type SOCK_SEQPACKET (AF_UNIX) in the container",
}
"""System calls that every job needs, each with the remedy if it fails."""


def abilities(facts: Abilities) -> Iterator[Finding]:
    """Judge the system calls."""
    failed = {name: why for name, why in facts.calls.items() if why}
    for name, why in failed.items():
        if name in NEEDED:
            yield Finding("fork", "error", f"{name} fails: {why}; every job needs it", NEEDED[name])
        else:
            remedy = "use Linux 5.3 or newer, or allow it in the container's seccomp profile"
            yield Finding("fork", "warning", f"{name} fails: {why}; Python waits for processes by polling", remedy)
    if not failed:
        yield Finding("fork", "ok", f"{', '.join(facts.calls)} work")
    if facts.user_namespaces:
        what = f"user namespaces are not available ({facts.user_namespaces}); no job needs them"
        yield Finding("namespaces", "ok", what)
    else:
        yield Finding("namespaces", "ok", "user namespaces are available; no job needs them")


def network(facts: Network) -> Iterator[Finding]:
    """Judge the loopback and the ports."""
    if facts.loopback:
        what = f"a connection to 127.0.0.1 fails: {facts.loopback}; ranks of a group meet there"
        yield Finding("ports", "error", what, "as root: ip link set lo up; and let the firewall pass the loopback")
    elif facts.ports < PORTS:
        what = f"the system gives out {facts.ports} ports only (net.ipv4.ip_local_port_range)"
        remedy = "as root: sysctl -w net.ipv4.ip_local_port_range='32768 60999'"
        yield Finding("ports", "warning", what, remedy)
    else:
        yield Finding("ports", "ok", f"the loopback works, with {facts.ports:,} ports")


def host(facts: Host) -> Iterator[Finding]:
    """Judge the machine's name: gloo, NCCL and Ray ask for its address."""
    if not facts.error:
        yield Finding("host", "ok", f"{facts.name!r} has an address of this machine")
        return
    what = (
        f"this machine's name {facts.name!r} has no address of its own ({facts.error}): gloo, NCCL and Ray may choose "
    )
    remedy = f"as root: echo '127.0.1.1 {facts.name}' >> /etc/hosts; or choose an interface: "
    remedy += "export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0"
    yield Finding("host", "warning", what + "a wrong one", remedy)


def tmp(facts: Disk) -> Iterator[Finding]:
    """Judge ``/tmp``, which has the sockets of jobs."""
    if facts.error:
        what = f"/tmp cannot be written ({facts.error}): the sockets of jobs are there"
        yield Finding("tmp", "error", what, "as root: chmod 1777 /tmp; of a container: docker run --tmpfs /tmp …")
    elif facts.free < TMP_BYTES:
        yield Finding("tmp", "warning", f"/tmp has {_gb(facts.free)} free", "see who fills it: du -sh /tmp/*")
    else:
        yield Finding("tmp", "ok", f"/tmp has {_gb(facts.free)} free")


def disk(facts: Disk) -> Iterator[Finding]:
    """Judge one folder."""
    room = f"{facts.path} has {_gb(facts.free)} free"
    elsewhere = "choose another place: export ROLEMESH_RUNS=/a/folder/with/room"
    if facts.error:
        what = f"{facts.path} cannot be written: {facts.error}"
        yield Finding("disk", "error", what, "choose another place: export ROLEMESH_RUNS=/a/folder/of/yours")
        return
    found = []
    if facts.free < DISK_BYTES:
        status: Status = "error" if facts.free < LEAST_DISK_BYTES else "warning"
        what = f"{room}: checkpoints of a model may fill it"
        found.append(Finding("disk", status, what, elsewhere))
    if 0 <= facts.files < DISK_FILES:
        found.append(Finding("disk", "warning", f"{facts.path} has room for {facts.files:,} more files", elsewhere))
    if facts.lock_error:
        what = f"locks do not work in {facts.path} ({facts.lock_error}): two jobs of one name may run at once"
        found.append(Finding("disk", "warning", what, "mount it with locks (NFS: without nolock), or " + elsewhere))
    yield from found or [Finding("disk", "ok", f"{room}; it can be written, and locks work")]


def clock(facts: Clock) -> Iterator[Finding]:
    """Judge the date, steps of the clock, and the file system's time. Time zones do not matter, because no decision
    depends on local time."""
    found = []
    if facts.now < EARLIEST:
        what = "the clock is not set: it says a date before 2024, with which certificates are not valid"
        found.append(Finding("clock", "error", what, "as root: timedatectl set-ntp true"))
    if abs(facts.wall_s - facts.monotonic_s) > STEP_S or facts.monotonic_s < 0:
        what = f"the clock was set while it was looked at, by {facts.wall_s - facts.monotonic_s:+.1f} s"
        found.append(Finding("clock", "warning", what, "let one service set it: timedatectl status"))
    if abs(facts.file_system_ahead_s) > AHEAD_S:
        way = "ahead of" if facts.file_system_ahead_s > 0 else "behind"
        what = f"the time of the runs folder's file system is {abs(facts.file_system_ahead_s):.1f} s {way} this clock"
        remedy = "as root, here and on the file server: timedatectl set-ntp true"
        found.append(Finding("clock", "warning", what, remedy))
    yield from found or [Finding("clock", "ok", "the clock is set, goes evenly, and agrees with the file system's")]


def plugins(facts: Plugins) -> Iterator[Finding]:
    """Judge broken, ambiguous and shadowed plugins."""
    yield from (Finding("plugins", "error", *trouble) for trouble in facts.broken)
    yield from (Finding("plugins", "warning", *trouble) for trouble in (*facts.duplicate, *facts.shadowed))
    if not (facts.broken or facts.duplicate or facts.shadowed):
        yield Finding("plugins", "ok", f"{facts.usable} plugins are usable")


def installation(facts: Installation) -> Iterator[Finding]:
    """Judge leftovers of interrupted installations."""
    yield from (Finding("installation", "error", *trouble) for trouble in facts.half)
    yield from (Finding("installation", "warning", *trouble) for trouble in facts.leftovers)
    if not (facts.half or facts.leftovers):
        yield Finding("installation", "ok", "no installation was left unfinished")


def working_dir(facts: WorkingDir) -> Iterator[Finding]:
    """Judge files that hide modules: the working directory comes first on a job's import path."""
    if facts.error:
        what = f"the working directory cannot be read: {facts.error}"
        yield Finding("working-dir", "error", what, "change to a folder that is there: cd")
        return
    for name in facts.hides:
        what = f"{facts.path}/{name} hides the module of that name from jobs that are started here"
        yield Finding("working-dir", "warning", what, "rename it, or start jobs from another folder")
    if not facts.hides:
        yield Finding("working-dir", "ok", f"{facts.path} hides no module of Python")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
