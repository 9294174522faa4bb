"""How a forked process of Python ends, and what it does for signals that it inherited: each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import os, sys, tempfile
from rolemesh_processes.ending import disown_finalizers, end_program, flush_files, release_modules

ours = tempfile.TemporaryDirectory(dir=".", prefix="ours-")
kept = set(sys.modules)
if os.fork() == 0:
    disown_finalizers()
    import program
    end_program()
    print("modules", flush=True)
    release_modules(kept)
    flush_files()
    os._exit(0)
_, status = os.wait()
print("kept", os.path.isdir(ours.name))
sys.exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
"""
PROGRAM = """
import atexit, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor


class Last:
    def __del__(self):
        print("object", flush=True)


held, rows, folder = Last(), open("rows", "w"), tempfile.TemporaryDirectory(dir=".", prefix="theirs-")
rows.write("1,2")
atexit.register(print, "handler", flush=True)
threading.Thread(target=lambda: (time.sleep(0.2), print("thread", flush=True))).start()
pool = ThreadPoolExecutor(1)
pool.submit(lambda: (time.sleep(0.1), print("pool", flush=True)))
"""


def python(folder: Path, code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_end_of_a_forked_process_is_in_the_order_of_the_interpreters(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert python(tmp_path, FORKS).split("\n")[:-1] == ["pool", "thread", "handler", "modules", "object", "kept True"]
    assert (tmp_path / "rows").read_text() == "1,2"
    assert not list(tmp_path.glob("theirs-*"))


def test_the_main_module_is_not_released_under_the_name_that_multiprocessing_gives_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import multiprocessing")
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_signal_during_the_release_finds_no_handler_of_the_program(tmp_path: Path) -> None:
    """As in the interpreter, which sets all signals to their default actions first."""
    (tmp_path / "program.py").write_text(
        "import os, signal\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1): kill(pid, number)\n"
        "held = Last()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.getpid())\n"
    )
    judge = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    ours = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, capture_output=True, text=True)
    assert (ours.returncode, ours.stderr) == (-judge.returncode, judge.stderr) == (signal.SIGUSR1, "")


def test_a_daemon_thread_ends_in_silence_when_its_names_are_released(tmp_path: Path) -> None:
    """As in the interpreter, which lets no other thread run by then."""
    (tmp_path / "program.py").write_text(
        "import threading\n"
        "class Last:\n"
        "    def __del__(self, sleep=__import__('time').sleep): sleep(0.3)\n"
        "held = Last()\n"
        "import time\n"
        "def works():\n"
        "    while True: time.sleep(0.001)\n"
        "threading.Thread(target=works, daemon=True).start()\n"
    )
    judge = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    ours = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, capture_output=True, text=True)
    assert (ours.returncode, ours.stderr) == (judge.returncode, judge.stderr) == (0, "")


def test_the_log_says_what_the_end_waits_for(tmp_path: Path) -> None:
    code = """
import threading
from rolemesh_processes import ending
go = threading.Event()
threading.Thread(target=go.wait, name="uploads").start()
print(ending.awaited())
go.set()
"""
    assert python(tmp_path, code) == "thread uploads\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_programs_that_a_process_of_the_job_starts_get_the_signals_that_it_inherited(
    tmp_path: Path, ignored: bool
) -> None:
    code = f"""
import signal, subprocess, sys
from rolemesh_processes.signals import pass_over
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
pass_over(signal.SIGINT)
signal.raise_signal(signal.SIGINT)
subprocess.run([sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"])
"""
    assert python(tmp_path, code) == f"{ignored}\n"


def test_a_rank_that_inherited_sigterm_as_ignored_obeys_only_its_agents() -> None:
    code = """
import signal
from rolemesh_durable.rank.signals import on_sigterm
expected, stopped = [0], []
signal.signal(signal.SIGTERM, signal.SIG_IGN)
on_sigterm(lambda: expected[0], lambda: stopped.append(1))
signal.raise_signal(signal.SIGTERM)
print(len(stopped))
expected[0] = 1
signal.raise_signal(signal.SIGTERM)
print(len(stopped))
"""
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN
    assert python(Path.cwd(), code) == "0\n1\n"
