"""Scripts as torchrun runs them: what they find, how they end, and what happens when somebody is killed."""

from __future__ import annotations

import json
import os
import py_compile
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.torchrun import judged
from tests.waiting import until

BIN = Path(sys.executable).parent
ARGUMENTS = ("a", "--b", "d=${now:%Y}", "u=${NOT_SET}", "h=${HOME}", "r=${local_rank}", "p=$$x", "$", " # ", "")
TELL = """
import inspect, json, logging, os, resource, signal, sys, tempfile
from pathlib import Path
os.environ["TORCH_COMPILE_DISABLE"] = "1"
import torch
told = {
    "env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "name": __name__, "file": __file__,
    "path": sys.path, "handlers": str(logging.getLogger().handlers), "level": logging.getLogger().level,
    "threads": torch.get_num_threads(), "temporary": tempfile.gettempdir(), "seed": torch.initial_seed(),
}
import pluggy
import torch._dynamo
told["eager"] = torch._dynamo.config.disable


class Options:
    steps: int = 3


os.chdir("/")
told |= {
    "annotations": str(Options.__annotations__), "source": inspect.getsource(Options), "command": sys.orig_argv,
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "main": sorted(name for name in globals() if name[0] == "_"),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)],
    "streams": [f"{each.name} {each.mode}" for each in (sys.stdin, sys.stdout, sys.stderr)],
    "first": [getattr(sys, n) is getattr(sys, f"__{n}__") for n in ("stdin", "stdout", "stderr")],
    "builtins": str(__builtins__),
    "debugger": sys.breakpointhook is sys.__breakpointhook__, "loader": __loader__.path,
    "own": pluggy.__file__,
    "finders": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
}
os.chdir(told["cwd"])
Path(f"told-{os.environ['RANK']}.json").write_text(json.dumps(told))
"""
TRAIN = """
import hashlib, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
first, kept = 0, Path("kept.pt")
if kept.exists():
    state = torch.load(kept)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
for step in range(first, 40):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    while sys.argv[1] == "waits" and step == 15 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.05)
    if step % 10 == 9:
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, "new.pt")
            os.replace("new.pt", kept)
        dist.barrier()
    print("step", step, flush=True)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"rank {rank} ends with {digest}", flush=True)
dist.destroy_process_group()
"""
SPAWNS = """
import multiprocessing, random
class Point:
    def __init__(self, number): self.number = number
def points(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map(Point, [1])
if __name__ == "__main__":
    print(random.random(), *(type(points(method)[0]).__name__ for method in ("spawn", "forkserver")), flush=True)
"""
ENDS = """
import atexit, os, signal, sys, threading, time
how, rank = sys.argv[1], int(os.environ["RANK"])
atexit.register(print, "rank", rank, "has ended")
if how == "raise" and rank == 1:
    raise ValueError("no such column")
if how == "exit" and rank == 1:
    open("lives", "a").write("x")
    sys.exit(7)
if how == "become" and rank == 1:
    os.execlp("sh", "sh", "-c", "exit 5")
if how == "past":
    with open(f"lives-{rank}", "a") as file:
        file.write("x")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        while rank == 0 and not os.path.exists("lives-1"):  # or torchrun ends rank 1 before it has begun
            time.sleep(0.01)
        os._exit(3 if rank == 0 else 0)
    if rank == 0:
        threading.Thread(target=lambda: os._exit(0)).start()
        time.sleep(60)
    if not (child := os.fork()):
        sys.exit(7)
    print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os.execlp("sh", "sh", "-c", "sleep 1; echo became another program as rank $RANK")
if how == "wait":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    print("waits", flush=True)
    while not asked:
        time.sleep(0.05)
    print(f"rank {rank} has saved", flush=True)
"""
LEAVES = """
import os
import py_compile
os.environ["TORCH_COMPILE_DISABLE"] = str(1)
os.environ["OMP_NUM_THREADS"] = str(1 + 1)
import torch._dynamo
import atexit, concurrent.futures, multiprocessing, os, signal, subprocess, sys, tempfile, threading, time, weakref
rank = os.environ["RANK"]


def put(name):
    with open(f"{sys.argv[1]}/{name}-{rank}", "w") as file:
        file.write(name)


def late(name):
    time.sleep(0.3)
    put(name)


class Last:
    def __del__(self, touch=os.mknod, path=f"{sys.argv[1]}/object-{rank}"):
        touch(path)


if os.fork() == 0:
    sys.exit(3)
put(f"child-{os.waitstatus_to_exitcode(os.wait()[1])}")
held, rows = Last(), open(f"{sys.argv[1]}/rows-{rank}", "w")
rows.write("1,2")
folder = tempfile.TemporaryDirectory(dir=sys.argv[1])
atexit.register(put, "handler")
weakref.finalize(rows, put, "finalizer")
threading.Thread(target=late, args=("thread",)).start()
concurrent.futures.ThreadPoolExecutor(1).submit(late, "pool")
concurrent.futures.ProcessPoolExecutor(1).submit(late, "processes")
multiprocessing.Process(target=late, args=("process",)).start()
put(f"{torch._dynamo.config.disable}-{torch.get_num_threads()}")
numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1)
put("-".join(str(int(signal.getsignal(number) is signal.SIG_IGN)) for number in numbers))
sleeps = subprocess.Popen(["sleep", "60"])
sleeps.send_signal(signal.SIGINT)
put(f"interrupted-{sleeps.wait()}")
"""
LASTS = """
import os, signal, time
print([signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGHUP, signal.SIGINT)], end="? ")
while not os.path.exists("go"):
    time.sleep(0.05)
"""
TORCHRUN_ONLY = {"LC_CTYPE"}
ROLEMESH_ONLY = {"ROLEMESH_JOB"}
DIFFERENT = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}
"""Variables that differ between two runs of torchrun as well."""


def plain() -> dict[str, str]:
    """The environment of a person who has set nothing."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("tell.py", TELL), ("train.py", TRAIN), ("ends.py", ENDS), ("leaves.py", LEAVES)):
        (tmp_path / name).write_text(text)
    return tmp_path


def as_in_a_terminal() -> None:
    """Resets the signals that the test run ignores, for example because `nohup` started it. Lowers a soft limit."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]], preexec_fn=as_in_a_terminal,
        cwd=folder, env=plain(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def told(folder: Path) -> Iterator[dict[str, object]]:
    for path in sorted(folder.glob("told-*.json")):
        yield json.loads(path.read_text())
        path.unlink()


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / command[0]), *command[1:]], preexec_fn=as_in_a_terminal,
        cwd=folder, env=plain(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_worker_finds_what_torchrun_would_have_told_it(folder: Path, nodes: int) -> None:
    flags = ("--nnodes", str(nodes), "--nproc-per-node", "2", "--max-restarts", "0")
    (folder / "pluggy.py").touch()  # rolemesh has imported another one
    met = ("--master-addr", "localhost", "--master-port", str(free_port())) if nodes > 1 else ()
    agents = [
        start(folder, "torchrun", *flags, *met, "--node-rank", str(n), "tell.py", *ARGUMENTS) for n in range(nodes)
    ]
    for agent in agents:
        _, said = agent.communicate()
        assert agent.returncode == 0, said
    theirs = list(told(folder))
    done = run(folder, "rolemesh", "launch", *flags, "tell.py", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    ours = list(told(folder))
    assert len(theirs) == len(ours) == 2 * nodes
    assert len({found.pop("seed") for found in (*theirs, *ours)}) == 4 * nodes, "every process has another"
    for one, other in zip(theirs, ours, strict=True):
        wanted, found = one.pop("env"), other.pop("env")
        assert isinstance(wanted, dict)
        assert isinstance(found, dict)
        assert other == one
        names = wanted.keys() - TORCHRUN_ONLY
        assert names == found.keys() - TORCHRUN_ONLY - ROLEMESH_ONLY
        assert {name: found[name] for name in names - DIFFERENT} == {name: wanted[name] for name in names - DIFFERENT}


@pytest.mark.more
def test_a_worker_finds_the_variables_that_the_person_has_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**plain(), "OMP_NUM_THREADS": "3", "TMPDIR": str(folder), "TOKENIZERS_PARALLELISM": "true"}
    (folder / "scripts").mkdir()
    (folder / "tell.py").rename(folder / "scripts/tell.py")
    monkeypatch.setattr(sys.modules[__name__], "plain", lambda: given)
    found = []
    for command in (("torchrun",), ("rolemesh", "launch", "--max-restarts", "0")):
        done = run(folder, *command, "./scripts/../scripts/tell.py", "a")
        assert done.returncode == 0, done.stderr
        (one,) = told(folder)
        found.append({name: value for name, value in one.items() if name not in ("env", "seed")})
        assert given.items() <= dict(one["env"]).items()  # type: ignore[call-overload]
    assert found[0] == found[1]


@pytest.mark.more
def test_a_worker_sees_the_devices_of_its_node_as_under_torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**plain(), "CUDA_VISIBLE_DEVICES": "7,3"}
    monkeypatch.setattr(sys.modules[__name__], "plain", lambda: given)
    done = run(
        folder, "rolemesh", "launch", "--nproc-per-node", "2", "--nodes", "1x(cpu=2,gpu=2)",
        "--set", "roles.worker.resources.gpu=1", "--no-python", "sh", "-c", "echo $LOCAL_RANK of $CUDA_VISIBLE_DEVICES",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) >= {"0 of 7,3", "1 of 7,3"}


def digests(text: str) -> set[str]:
    return set(re.findall(r"rank \d ends with ([0-9a-f]+)", text))


@pytest.mark.scenario("rolemesh launch --nproc-per-node 2 --max-restarts 3 train.py")
def test_a_killed_worker_is_back_and_the_script_ends_as_under_torchrun(folder: Path) -> None:
    (digest,) = digests(judged("--nproc-per-node", "2", "train.py", "runs", cwd=folder, env=plain()))
    (folder / "kept.pt").unlink()
    process = start(folder, "rolemesh", "launch", "--nproc-per-node", "2", "--max-restarts", "3", "train.py", "waits")
    until((folder / "kept.pt").exists, what="the script has kept a checkpoint")
    status = run(folder, "rolemesh", "status", "train", "--json")
    (pid,) = [rank["pid"] for rank in json.loads(status.stdout)["ranks"] if rank["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert digests(out) == {digest}
    assert "rank 1: its process was killed by SIGKILL" in said
    assert "worker/0, worker/1 ready again" in said


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param("raise", "ValueError: no such column", marks=pytest.mark.more),
        ("exit", "exit code 7"),
        pytest.param("become", "what it became by exec has ended with exit code 5", marks=pytest.mark.more),
    ],
)
def test_a_script_that_fails_fails_the_command(folder: Path, how: str, why: str) -> None:
    done = run(folder, "rolemesh", "launch", "--nproc-per-node", "2", "--max-restarts", "1", "ends.py", how)
    assert done.returncode == 1
    assert why in done.stderr
    assert "1 of 1 restarts used" in done.stderr
    assert ("rank 1 has ended" in done.stdout) == (how != "become"), "exec runs no exit handler"
    assert "rolemesh_launch/" not in done.stderr, "its own frames only"
    if how == "exit":
        assert "Traceback" not in done.stderr
        assert (folder / "lives").read_text() == "xx"


@pytest.mark.more
def test_a_worker_that_ends_past_python_with_exit_code_0_is_done_as_under_torchrun(folder: Path) -> None:
    def lived(*command: str) -> tuple[int, list[str], list[str]]:
        done = run(folder, *command, "--nproc-per-node", "2", "--max-restarts", "1", "ends.py", "past")
        lives = sorted(folder.glob("lives-*"))
        counts = [path.read_text() for path in lives]
        for path in lives:
            path.unlink()
        return (
            done.returncode,
            counts,
            sorted(line for line in done.stdout.splitlines() if " ended " in line or " as " in line),
        )

    ours = lived("rolemesh", "launch")
    assert ours == lived("torchrun")
    assert ours == (0, ["xx", "xx"], ["became another program as rank 1", "the child ended with 7"])


def test_the_streams_of_a_script_are_those_of_the_command_byte_for_byte(folder: Path) -> None:
    text = b"\xff\xfe\x80 \x00 \xc3\xa9\n50 %\r100 %\nno newline at the end"
    code = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())\nsys.stderr.write('careful')\n"
    (folder / "copies.py").write_text(code)
    done = subprocess.run(
        [str(BIN / "rolemesh"), "launch", "copies.py"],
        cwd=folder, env=plain(), input=text, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == text
    assert done.stderr.startswith(b"careful")
    shown = run(folder, "rolemesh", "logs", "copies").stdout
    assert "no newline at the end\n" in shown
    assert "careful" in shown


def test_a_compiled_script_gets_its_classes_back_from_spawned_processes(folder: Path) -> None:
    (folder / "spawns.py").write_text(SPAWNS)
    py_compile.compile(str(folder / "spawns.py"), cfile=str(folder / "spawns.pyc"))
    drawn = set()
    for _ in range(2):
        done = run(folder, "rolemesh", "launch", "--nproc-per-node", "2", "spawns.pyc")
        assert done.returncode == 0, done.stderr
        lines = re.findall(r"(0\.\d+) (\w+) (\w+)", done.stdout)
        assert [(one, other) for _, one, other in lines] == [("Point", "Point")] * 2
        drawn |= {number for number, *_ in lines}
    assert len(drawn) == 4, "as in Python, each process draws other numbers"


def test_a_sigterm_reaches_the_scripts_own_handler(folder: Path) -> None:
    process = start(folder, "rolemesh", "launch", "--nproc-per-node", "2", "-t", "3", "ends.py", "wait")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("[default")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate()
    assert process.returncode == 130, said
    assert {line.partition(":")[2] for line in out.splitlines()} >= {"rank 0 has saved", "rank 1 has saved"}


@pytest.mark.more
def test_a_worker_ends_as_an_interpreter_does(folder: Path) -> None:
    for command in (("torchrun",), ("rolemesh", "launch", "--max-restarts", "0")):
        (folder / command[0]).mkdir()
        done = run(folder, *command, "--nproc-per-node", "2", "leaves.py", command[0])
        assert done.returncode == 0, done.stderr
    theirs, ours = (
        {path.name: path.read_text() for path in (folder / command).iterdir()} for command in ("torchrun", "rolemesh")
    )
    assert len(theirs) == 24
    assert "True-2-0" in theirs, "variables that a script sets before it imports torch count"
    assert ours == theirs


def test_signals_that_are_ignored_where_the_command_is_given_stay_ignored(folder: Path) -> None:
    (folder / "lasts.py").write_text(LASTS)
    command = (str(BIN / "rolemesh"), "launch", "--max-restarts", "0", "lasts.py")
    trap = f"trap '' HUP TERM INT; exec {' '.join(command)}"
    process = subprocess.Popen(
        ["sh", "-c", trap], preexec_fn=as_in_a_terminal,
        cwd=folder, env=plain(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(14) == "[True, True]? ", "a prompt is shown without a newline"
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    (folder / "go").touch()
    assert process.wait() == 0


def test_a_script_that_is_not_there_starts_nothing(folder: Path) -> None:
    done = run(folder, "rolemesh", "launch", "nowhere.py")
    assert done.returncode == 2
    assert "there is no script 'nowhere.py'" in done.stderr
    assert not (folder / "runs").exists()


def test_a_module_has_the_arguments_that_python_gives_it(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package/told.py").write_text(
        "import sys; print(__name__, __package__, sys.argv, sys.orig_argv, sys.path[0])"
    )
    given = ("-m", "package.told", "x", "-y")
    plainly = run(folder, sys.executable, "-u", *given)
    done = run(folder, "rolemesh", "launch", *given)
    assert done.returncode == 0, done.stderr
    assert plainly.stdout.strip() in done.stdout.splitlines()


@pytest.mark.more
def test_arguments_reach_a_script_byte_for_byte(folder: Path) -> None:
    (folder / "show.py").write_text("import os, sys\nprint([os.fsencode(each) for each in sys.argv[1:]])")
    given = ("show.py", "", "--", "-h", "caf\udce9", "two\nlines", "{x}", "%41", "${byte_ff", "*")
    torchrun, launch = (run(folder, *way, *given) for way in (("torchrun",), ("rolemesh", "launch")))
    assert (torchrun.returncode, launch.returncode) == (0, 0), launch.stderr
    assert launch.stdout == torchrun.stdout


@pytest.mark.more
@pytest.mark.parametrize("workers", ["1", "2"])
def test_scripts_that_write_variables_and_import_no_torch_end_with_all_processors(folder: Path, workers: str) -> None:
    (folder / "plain.py").write_text(
        "import os\nos.environ.update(FOO='1')\nimport numpy\n"
        "from threadpoolctl import threadpool_info\n"
        "print('threads', {each['num_threads'] for each in threadpool_info() if each['user_api'] == 'blas'},"
        " os.environ.get('OPENBLAS_NUM_THREADS'))\n"
    )
    flags = ("--nproc-per-node", workers, "plain.py")
    theirs, ours = run(folder, "torchrun", *flags), run(folder, "rolemesh", "launch", *flags)
    assert (ours.returncode, sorted(ours.stdout.splitlines())) == (0, sorted(theirs.stdout.splitlines())), ours.stderr


def test_an_executable_runs_as_a_worker(folder: Path) -> None:
    done = run(folder, "rolemesh", "launch", "--no-python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1" in done.stdout
