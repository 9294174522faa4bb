"""Programs end with all their processes and files, also if the rank or the guard is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.waiting import HANG_S, until

from rolemesh_gateway.programs import Program, ProgramResult

LIMITS = {"seconds": 60.0, "grace_s": 0.2, "processes": 20, "kept": 1000}
ESCAPES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("escaped", "w").write(str(os.getpid()))
        os.close(1); os.close(2)
        time.sleep(600)
    os._exit(0)
while not os.path.exists("escaped") or not open("escaped").read():
    time.sleep(0.01)
print(open("escaped").read())
"""


async def ran(code: str, parent: Path, stdin: str = "", **limits: float) -> ProgramResult:
    """Run Python code as a program, to its end."""
    ended: asyncio.Future[ProgramResult] = asyncio.get_running_loop().create_future()
    command = [sys.executable, "-c", code]
    program = Program(command, {"PATH": os.environ["PATH"]}, stdin, {**LIMITS, **limits}, parent, ended.set_result)
    try:
        return await ended
    finally:
        await program.end()


def test_a_program_gets_its_input_and_its_output_is_kept(tmp_path):
    code = (
        "import sys, os; print(sys.stdin.read()[::-1], sorted(os.environ)); print('bad', file=sys.stderr); sys.exit(3)"
    )
    found = asyncio.run(ran(code, tmp_path, "abc"))
    assert (found.code, found.ended, found.errors, found.cut) == (3, "", "bad\n", 0)
    assert found.output.startswith("cba ['HOME', 'LC_CTYPE', 'PATH', 'TMPDIR']")
    assert not list(tmp_path.iterdir())


def test_a_gigabyte_of_output_is_cut_to_its_end(tmp_path):
    code = "import sys; b = 'x' * (1 << 20)\nfor _ in range(1000): sys.stdout.write(b)\nprint('end')"
    found = asyncio.run(ran(code, tmp_path))
    assert found.output.endswith("xend\n")
    assert (len(found.output), found.cut) == (1000, 1000 * (1 << 20) + 4 - 1000)


def test_a_process_that_left_its_group_and_session_ends_with_the_program(tmp_path):
    found = asyncio.run(ran(ESCAPES, tmp_path))
    assert found.code == 0
    assert not psutil.pid_exists(int(found.output))


def test_a_program_that_ignores_sigterm_ends_at_its_limit(late, tmp_path):
    code = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(late)!r}, 'w'); time.sleep(600)"
    )
    found = asyncio.run(ran(code, tmp_path))
    assert (found.code, found.ended) == (-signal.SIGKILL, "seconds")


def test_a_program_has_the_grace_to_end_after_its_limit(late, tmp_path):
    code = f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); open({str(late)!r}, 'w')"
    found = asyncio.run(ran(f"{code}; time.sleep(600)", tmp_path, grace_s=30.0))
    assert (found.code, found.ended) == (5, "seconds")


def test_a_fork_bomb_is_ended(tmp_path):
    code = "import os, time\nfor _ in range(60): os.fork() or time.sleep(600)\ntime.sleep(600)"
    found = asyncio.run(ran(code, tmp_path))
    assert found.ended == "processes"


def test_a_missing_program_says_so(tmp_path):
    async def main():
        ended = asyncio.get_running_loop().create_future()
        Program(["no-such-program"], {"PATH": "/bin"}, "", LIMITS, tmp_path, ended.set_result)
        return await ended

    found = asyncio.run(main())
    assert (found.code, found.errors) == (127, "cannot run no-such-program: No such file or directory\n")


def test_a_guard_that_is_killed_takes_the_program_along(tmp_path):
    pids = tmp_path.parent / "pids"
    code = (
        f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); os.kill(os.getppid(), 9); time.sleep(60)"
    )
    found = asyncio.run(ran(code, tmp_path))
    assert found.ended == "guard"
    assert not list(tmp_path.iterdir())
    assert not psutil.pid_exists(int(pids.read_text())) or psutil.Process(int(pids.read_text())).wait(HANG_S) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_program_whose_rank_is_killed(tmp_path, number):
    rank = f"""
import asyncio, os, sys
from pathlib import Path
from rolemesh_gateway.programs import Program
async def main():
    Program([sys.executable, "-c", {ESCAPES + "time.sleep(600)"!r}], {{}}, "", {LIMITS!r}, Path(sys.argv[1]), print)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", rank, str(tmp_path)])
    escaped_id = until(lambda: "".join(each.read_text() for each in tmp_path.glob("*/escaped")))
    left = psutil.Process(process.pid).children(recursive=True)
    escaped = psutil.Process(int(escaped_id))
    process.send_signal(number)
    process.wait()
    psutil.wait_procs([*left, escaped])
    until(lambda: not list(tmp_path.iterdir()))
