"""The same four jobs in surroundings as containers, clusters and terminals have them.

Each cell of the matrix is a test: `SURROUNDINGS` × hello, sft with a kill, launch, and the verbs for a running job. In
the surroundings of `ON_RAY`, the first two run on a Ray of their own, too. A
surrounding that this machine cannot make is skipped with the reason. The namespaces need root.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOCAL = ("--backend", "local", "--no-report")
RAY = ("--backend", "ray", "--no-report")
LIMIT_S = 300.0
NAMES = ("USER", "LOGNAME", "LNAME", "USERNAME")


class Surrounding(NamedTuple):
    """A command line is run as ``sh -c 'LINES; exec "$@"'`` in new `namespaces`, with `variables`; None removes one.

    `command`: the beginning of the command line, in place of ``rolemesh``. `needs`: a program.
    """

    lines: str = ""
    namespaces: str = ""
    variables: Mapping[str, str | None] = {}
    command: Sequence[str] = ("rolemesh",)
    needs: str = ""


def _mounted(where: str, options: str) -> str:
    return f'mkdir -p "{where}" && mount -t tmpfs -o {options} tmpfs "{where}"'


CGROUP = (
    "mount -t tmpfs none /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/memory /sys/fs/cgroup/cpu && cd /sys/fs/cgroup && "
    "echo 6442450944 | tee memory.max memory/memory.limit_in_bytes && "
    "echo 0 | tee memory.current memory/memory.usage_in_bytes && echo '200000 100000' > cpu.max && "
    "echo 200000 > cpu/cpu.cfs_quota_us && echo 100000 > cpu/cpu.cfs_period_us"
)
KERNEL_CGROUP = """
group=rolemesh-$(basename "$FOLDER")
cd /sys/fs/cgroup
if [ -d memory ]; then
  mkdir -p memory/$group cpu/$group && echo 2G > memory/$group/memory.limit_in_bytes &&
    echo 200000 > cpu/$group/cpu.cfs_quota_us && echo $$ | tee memory/$group/cgroup.procs > cpu/$group/cgroup.procs
else
  echo '+memory +cpu' > cgroup.subtree_control && mkdir -p $group && echo 2G > $group/memory.max &&
    echo '200000 100000' > $group/cpu.max && echo $$ > $group/cgroup.procs
fi || exit 77
"""
"""A control group of either version, with a limit that the kernel enforces."""
ACTIVATE = """
[ -n "$PROJ_LIB" ] && export _CONDA_SET_PROJ_LIB=$PROJ_LIB
export CONDA_PREFIX=/opt/env CONDA_DEFAULT_ENV=env CONDA_SHLVL=1 PYTHONNOUSERSITE=1 PS1='(env) '
conda() { echo "conda: $*" >&2; }
export -f conda
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PROXY = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
CLOCK = {"LD_PRELOAD": "clock.so", "STEPPED_CLOCK": "clock"}
"""Files in the cell's folder. libfaketime is no judge here: its sleeps fail when the clock is set back."""
STEPPED_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static const long *step;
__attribute__((constructor)) static void look(void) {
  int file = open(getenv("STEPPED_CLOCK"), O_RDONLY | O_CLOEXEC);
  void *found = file < 0 ? MAP_FAILED : mmap(0, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) step = found;
  if (file >= 0) close(file);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME && step) now->tv_sec += *step;
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec, now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
"""
SURROUNDINGS = {
    "root": Surrounding(),
    "nameless": Surrounding(namespaces="-U --map-user=54321 --map-group=54321", variables=dict.fromkeys(NAMES)),
    "read-only-home": Surrounding(_mounted("$HOME", "ro"), "-m", {"HOME": "/opt/nobody-s-home"}),
    "umask-000": Surrounding("umask 000"),
    "umask-077": Surrounding("umask 077"),
    "locale-c": Surrounding(variables=C_LOCALE),
    "latin-1": Surrounding(variables={**C_LOCALE, "PYTHONIOENCODING": "latin-1"}),
    "no-terminal": Surrounding("exec <&-", variables={"TERM": None}, command=("setsid", "--wait", "rolemesh")),
    "terminal-20x5": Surrounding(command=("script", "-qec"), needs="script"),
    "tmpdir-long": Surrounding('mkdir -p "$TMPDIR"', variables={"TMPDIR": "/tmp/" + "t" * 150}),
    "tmpdir-elsewhere": Surrounding(_mounted("$TMPDIR", "size=256m"), "-m", {"TMPDIR": "/mnt/rolemesh-tmp"}),
    "tmpdir-noexec": Surrounding(_mounted("$TMPDIR", "noexec,size=256m"), "-m", {"TMPDIR": "/mnt/rolemesh-tmp"}),
    "shm-64m": Surrounding(_mounted("/dev/shm", "size=64m"), "-m"),
    "cgroup": Surrounding(f"({CGROUP}) > /dev/null", "-m"),
    "cgroup-of-the-kernel": Surrounding(KERNEL_CGROUP, "-m"),
    "ipv6-only": Surrounding("ip link set lo up && ip addr del 127.0.0.1/8 dev lo", "-n", needs="ip"),
    "clock-steps": Surrounding(variables=CLOCK, needs="cc"),
    "python-I": Surrounding(command=(sys.executable, "-I", "-m", "rolemesh.cli")),
    "uv-run": Surrounding(command=("uv", "run", "--active", "--no-sync", "rolemesh"), needs="uv"),
    "conda": Surrounding(ACTIVATE),
    "proxy": Surrounding(variables=PROXY),
}

ON_RAY = ("root", "read-only-home", "umask-077", "locale-c", "no-terminal", "shm-64m", "ipv6-only", "proxy")
"""Surroundings that reach Ray's own processes, of which each has another: user, disk, text, terminal, network."""


class Cell(NamedTuple):
    """A surrounding and a folder with a job."""

    around: Surrounding
    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command, with its output in a file, so that nobody must read it."""
        around, environ = self.around, {**os.environ, "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": str(BIN.parent)}
        environ["PATH"] = f"{BIN}{os.pathsep}{environ['PATH']}"
        for name, value in around.variables.items():
            environ.pop(name, None)
            if value is not None:
                environ[name] = str(self.folder / value) if around.variables is CLOCK else value
        words = [*around.command, *arguments]
        if around.command[0] == "script":
            quoted = " ".join(f"'{word}'" for word in ("rolemesh", *arguments))
            words = [*around.command, f"stty cols 20 rows 5; exec {quoted}", "/dev/null"]
        new = ["unshare", *around.namespaces.split()] if around.namespaces else []
        shell = f'{around.lines}\ncd "$FOLDER"\nexec "$@"' if around.lines else 'exec "$@"'
        environ["FOLDER"] = str(self.folder)
        with (self.folder / "out").open("w") as out:
            return subprocess.Popen(
                [*new, "bash", "-c", shell, "bash", *words],
                cwd=self.folder,
                env=environ,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command to its end, and return what it has printed."""
        process = self.start(*arguments)
        stepping = self.around.variables is CLOCK
        end, hours = time.monotonic() + LIMIT_S, 0
        while process.poll() is None:
            assert time.monotonic() < end, (arguments, self.out())
            if stepping:  # an hour ahead, and two back
                hours = 1 if hours < 1 else -1
                _set(self.folder / "clock", hours)
            time.sleep(1.0 if stepping else 0.05)
        told = self.out()
        assert process.returncode == code, (arguments, told[-3000:])
        assert "Traceback" not in told, told[-3000:]
        return told

    def out(self) -> str:
        """Return the output of the command so far."""
        return (self.folder / "out").read_bytes().decode(errors="replace")

    def result(self, name: str) -> dict[str, object]:
        """The result of a run."""
        found: dict[str, object] = json.loads((self.folder / f"runs/{name}/result.json").read_text("utf-8"))
        return found


def _set(clock: Path, hours: int) -> None:
    """Set the clock of the processes that have mapped the file, which must not shrink meanwhile."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("l", 3600 * hours))


@pytest.fixture(params=SURROUNDINGS)
def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cell]:
    """A folder in a surrounding."""
    around = SURROUNDINGS[request.param]
    if around.needs and shutil.which(around.needs, path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip(f"there is no {around.needs}")
    if around.namespaces:
        if os.geteuid():
            pytest.skip("namespaces need root")
        tried = subprocess.run(["unshare", *around.namespaces.split(), "true"], capture_output=True, check=False)
        if tried.returncode:
            pytest.skip(f"unshare {around.namespaces}: {tried.stderr.decode().strip()}")
    folder = Path("/tmp" if len(str(tmp_path)) > 60 else tmp_path.parent, f"m{os.getpid()}-{request.param}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    if around.variables is CLOCK:
        _set(folder / "clock", 0)
        (folder / "clock.c").write_text(STEPPED_CLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c"], cwd=folder, check=True)
    made = Cell(around, folder)
    if around.lines == KERNEL_CGROUP and made._replace(around=around._replace(command=("true",))).start().wait():
        pytest.skip("this machine lets nobody make a control group")
    yield made
    for group in Path("/sys/fs/cgroup").glob(f"**/rolemesh-{folder.name}"):
        group.rmdir()  # all its processes have ended


@pytest.fixture(params=[LOCAL, pytest.param(RAY, marks=pytest.mark.ray)], ids=["local", "ray"])
def backend(request: pytest.FixtureRequest, cell: Cell) -> tuple[str, ...]:
    """The options that choose a backend."""
    chosen: tuple[str, ...] = request.param
    if chosen is RAY and cell.around not in [SURROUNDINGS[name] for name in ON_RAY]:
        pytest.skip("this surrounding has no cell on Ray")
    return chosen


def test_hello(cell: Cell, backend: tuple[str, ...]) -> None:
    shutil.copytree(ROOT / "examples/hello", cell.folder, dirs_exist_ok=True)
    cell.run("run", "job.yaml", *backend)
    assert cell.result("hello")["status"] == "done"
    assert "hello" in cell.run("status", "--json")
    cell.run("logs", "hello")
    cell.run("events", "hello")


def test_sft_with_a_kill(cell: Cell, backend: tuple[str, ...]) -> None:
    shutil.copytree(ROOT / "examples/sft", cell.folder, dirs_exist_ok=True)
    cell.run(
        "run", "job.yaml", "steps=12", "failover=[{use: process}]", *backend, "--chaos", "kills=1,targets=trainer/1"
    )
    found = cell.result("sft")
    assert (found["status"], found["committed_steps"]) == ("done", 12)
    assert found["recoveries"]


@pytest.mark.parametrize("cell", ["cgroup-of-the-kernel"], indirect=True)
def test_the_kernel_kills_a_rank_for_its_memory_and_the_job_goes_on(cell: Cell) -> None:
    (cell.folder / "roles.py").write_text(
        "import os, rolemesh\n"
        "def take(ctx: rolemesh.RankContext) -> None:\n"
        "    if ctx.step == 5 and not os.path.exists('taken'):\n"
        "        open('taken', 'w').close()\n"
        "        bytearray(3 << 30)\n"
    )
    (cell.folder / "flow.py").write_text("import rolemesh\n@rolemesh.flow\ndef f(job):\n    job.a.take()\n")
    (cell.folder / "job.yaml").write_text(
        "name: large\nflow: flow.py:f\nsteps: 10\nfailover: [{use: process}]\n"
        "roles: {a: {use: function, resources: {cpu: 0.5}, options: {target: roles.py:take}}}\n"
    )
    told = cell.run("run", "job.yaml", *LOCAL)
    assert "killed by SIGKILL (memory ran out" in told
    assert cell.result("large")["status"] == "done"
    assert "free on a node is 2.1" in cell.run("run", "job.yaml", "roles.a.resources.memory_gb=3", *LOCAL, code=2)


def test_launch(cell: Cell) -> None:
    (cell.folder / "script.py").write_text(
        "import os\nfor i in range(5): print(f'rank {os.environ[\"RANK\"]}: {i} caf\\xe9'.encode('ascii', 'replace'))\n"
    )
    told = cell.run("launch", "--nproc-per-node", "2", "script.py")
    lines = "".join(told.split())
    for rank in range(2):
        for i in range(5):
            assert f"rank{rank}:{i}caf?" in lines, told


def test_status_logs_and_stop(cell: Cell) -> None:
    (cell.folder / "roles.py").write_text(
        "import time\ndef tick(ctx) -> None:\n    print('größe ✓', flush=True) if 'utf' in (__import__('sys').stdout"
        ".encoding or '') else print('tick', flush=True)\n    time.sleep(0.05)\n",
        encoding="utf-8",
    )
    (cell.folder / "flow.py").write_text("import rolemesh\n@rolemesh.flow\ndef f(job):\n    job.a.tick()\n")
    (cell.folder / "job.yaml").write_text(
        "name: long\nflow: flow.py:f\nsteps: null\nroles: {a: {use: function, options: {target: roles.py:tick}}}\n"
    )
    # In a network of its own, a command reaches only the jobs that it started: the verbs share its shell there.
    if "-n" in cell.around.namespaces:
        script = "rolemesh run job.yaml --backend local --detach && rolemesh status long && rolemesh stop long"
        inside = Cell(cell.around._replace(command=("bash", "-c")), cell.folder)
        inside.run(f"{script} && rolemesh logs long")
    else:
        cell.run("run", "job.yaml", *LOCAL, "--detach")
        assert "long" in cell.run("status", "long", "--json")
        cell.run("logs", "long", "-n", "3")
        cell.run("stop", "long")
    assert cell.result("long")["status"] == "interrupted"
