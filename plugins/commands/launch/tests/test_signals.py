"""The signals of the command reach the script as under torchrun, in every phase."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import cycle, product
from pathlib import Path

import pytest
from tests.waiting import HANG_S, until

from rolemesh_launch.signals import Held

BIN = Path(sys.executable).parent
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
TRAIN = """
import os, signal, sys, time

phase, handler, number = sys.argv[1], sys.argv[2], signal.Signals[sys.argv[3]]
rank, asked = os.environ["RANK"], False


def put(name, text=""):
    with open(f"{name}-{rank}", "a") as file:
        file.write(text)


def save():
    time.sleep(1)
    put("saved")


def ask(*_):
    global asked
    asked = True


def end(*_):
    save()
    sys.exit(0)


def wait():
    put("ready")
    for _ in range(600):
        time.sleep(0.1)
        if asked:
            end()


if handler != "none":
    signal.signal(number, {"flag": ask, "exits": end}.get(handler, signal.default_int_handler))
try:
    if phase == "import":
        wait()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if phase == "setup":
        wait()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(300):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5 and phase == "checkpoint":
            put("checkpoint", "first half, ")
            put("ready")
            time.sleep(2 if handler == "flag" else 600)  # any signal but this one ends the sleep
            put("checkpoint", "second half")
        if step == 5 and phase in ("long", "end"):
            if phase == "end":
                break
            wait()
        if step == 5 and phase == "steps":
            put("ready")
        time.sleep(0.2)
        if asked:  # all ranks have been asked in the same step
            dist.barrier()
            end()
    wait()
except KeyboardInterrupt:
    if handler != "interrupt":
        raise
    save()
"""
FAILS = """
import os, signal, sys, time


def save(*_):
    time.sleep(1)
    open("saved-" + os.environ["RANK"], "w").close()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
open("ready-" + os.environ["RANK"], "w").close()
while not (os.path.exists("ready-0") and os.path.exists("ready-1")):
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    raise ValueError("no such column")
time.sleep(float(sys.argv[1]))
"""
LIVES = """
import atexit, os, signal, subprocess, sys, time

kind, fails, rank = sys.argv[1], sys.argv[2], os.environ["RANK"]
life = sum(name.startswith(f"pid-{rank}-") for name in os.listdir("."))
with open(f"pid-{rank}-{life}", "w") as file:
    file.write(str(os.getpid()))


def note(text):
    with open(f"notes-{rank}", "a") as file:
        print(life, text, file=file)


def save(*_):
    time.sleep(1)
    note("saved")
    sys.exit(0)


def stop(*_):
    raise RuntimeError("stopped")


handlers = {"saves": save, "raises": stop, "at exit": lambda *_: sys.exit(0), "ignores": signal.SIG_IGN}
signal.signal(signal.SIGTERM, handlers.get(kind, signal.SIG_DFL))
if kind == "at exit":
    atexit.register(lambda: (time.sleep(1), note("at exit")))
if life == 0:
    child = os.fork() if kind == "child" and rank != fails else -1
    if child == 0:
        signal.signal(signal.SIGTERM, save)
    if child <= 0:
        open("ready-" + rank, "w").close()
    while not (os.path.exists("ready-0") and os.path.exists("ready-1")):
        time.sleep(0.01)
    if rank == fails:
        raise ValueError("no such column")
    try:
        for _ in range(600):
            time.sleep(0.1)
    finally:
        note("finally")
for name in ("pid-0-0", "pid-1-0"):
    note(f"{name} lives: {os.path.exists('/proc/' + open(name).read())}")
time.sleep(4 if kind == "child" else 0)
"""
STEPS = """
import os, signal, sys, time, torch

asked, left, rank = False, 20, os.environ["RANK"]


def ask(*_):
    global asked
    asked = True


signal.signal(signal.SIGTERM, ask)
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
while left:
    optimizer.step()
    open("ready-" + rank, "w").close()
    time.sleep(0.1)
    left -= asked if rank == "1" else asked * left
open("saved-" + rank, "w").close()
"""


def cells() -> list[tuple[str, str, int, str]]:
    """Each phase with each handler and number of workers; the signals take turns."""
    phases = ("import", "setup", "steps", "long", "checkpoint", "end")
    numbers = cycle(SIGNALS)
    return [
        (*cell, next(numbers)) for cell in product(phases, ("none", "flag", "exits", "interrupt"), (1, 2))
    ]  # fmt: skip


def as_in_a_terminal() -> None:
    for name in SIGNALS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def signalled(folder: Path, workers: int, *arguments: str, command: tuple[str, ...], times: int = 1) -> dict[str, str]:
    """Run the script, send the command the signal in its phase, and return the files that the workers leave."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    handled = ("--signals-to-handle", ",".join(SIGNALS)) if arguments[-1] == "SIGUSR1" else ()
    process = subprocess.Popen(
        [str(BIN / command[0]), *command[1:], *handled, "--nproc-per-node", str(workers), "train.py", *arguments],
        cwd=folder, env=plain | {"OMP_NUM_THREADS": "1"}, preexec_fn=as_in_a_terminal, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + HANG_S
        while len(list(folder.glob("ready-*"))) < workers:
            assert time.monotonic() < end, "the workers are ready"
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        for _ in range(times):
            process.send_signal(signal.Signals[arguments[-1]])
            time.sleep(0.3 if times > 1 else 0.0)
        said = process.communicate()[0]
    finally:
        process.kill()
    assert process.returncode == {"torchrun": 1, "rolemesh": 130}[command[0]], said
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix != ".py" and path.is_file()}


@pytest.mark.soak
@pytest.mark.parametrize(("phase", "handler", "workers", "name"), cells())
def test_a_signal_in_any_phase_leaves_what_it_leaves_under_torchrun(
    tmp_path: Path, phase: str, handler: str, workers: int, name: str
) -> None:
    theirs, ours = (
        signalled(tmp_path / command[0], workers, phase, handler, name, command=command)
        for command in (("torchrun",), ("rolemesh", "launch"))
    )
    assert ours == theirs


@pytest.mark.more
def test_after_a_second_signal_the_workers_still_save(tmp_path: Path) -> None:
    signalled(tmp_path / "twice", 2, "long", "exits", "SIGTERM", command=("rolemesh", "launch"), times=2)
    until(lambda: len(list((tmp_path / "twice").glob("saved-*"))) == 2)


@pytest.mark.parametrize(
    "name", [pytest.param("SIGTERM", marks=pytest.mark.more), pytest.param("SIGQUIT", marks=pytest.mark.soak)]
)
def test_a_signal_while_the_job_starts_leaves_no_job(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(15)\nopen('ended', 'w').close()")
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    process = subprocess.Popen(
        [str(BIN / "rolemesh"), "launch", "train.py"],
        cwd=tmp_path, env=plain, preexec_fn=as_in_a_terminal, start_new_session=True,
    )  # fmt: skip
    until((tmp_path / ".rolemesh" / "train" / "logs").exists)
    process.send_signal(signal.Signals[name])
    assert process.wait() == 130
    assert not (tmp_path / "ended").exists()


@pytest.mark.more
def test_when_a_worker_fails_the_others_have_time_to_save(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    command = [str(BIN / "rolemesh"), "launch", "--nproc-per-node", "2", "fails.py", "60"]
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no such column" in done.stderr
    assert (tmp_path / "saved-0").exists(), "as under torchrun"


@pytest.mark.soak
def test_a_worker_goes_on_with_its_steps_after_rank_0_has_ended(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    with subprocess.Popen(
        [str(BIN / "rolemesh"), "launch", "--nproc-per-node", "2", "steps.py"],
        cwd=tmp_path, env=plain, preexec_fn=as_in_a_terminal, start_new_session=True, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert (tmp_path / "saved-1").exists(), said


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["default", "saves", "raises", "at exit", "child", "ignores"])
def test_a_restart_leaves_what_it_leaves_under_torchrun(tmp_path: Path, kind: str, rank: int) -> None:
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    left = []
    for command in (("torchrun",), ("rolemesh", "launch")):
        folder = tmp_path / command[0]
        folder.mkdir()
        (folder / "lives.py").write_text(LIVES)
        words = [str(BIN / command[0]), *command[1:], "--max-restarts", "1", "--nproc-per-node", "2"]
        done = subprocess.run(
            [*words, "lives.py", kind, str(rank)],
            cwd=folder, env=plain, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        left.append({path.name: path.read_text() for path in folder.glob("notes-*")})
    assert left[1] == left[0]


def test_a_signal_that_comes_while_the_script_pauses_waits_for_it() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append("handled"))
    try:
        held = Held()
        held.hold()
        signal.raise_signal(signal.SIGUSR1)
        came.append("continues")
        held.release()
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == ["continues", "handled", "handled"]
