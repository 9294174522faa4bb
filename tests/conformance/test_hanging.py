"""The limits of the kit: what does not end is ended; a busy machine makes nothing hang."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rolemesh_testing
from rolemesh_testing.hanging import communicated

HERE = "import os, time; os.sched_setaffinity(0, {cpu}); "
BURN_S = 0.4
LIMIT_S = 1.0


def started(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)


def test_the_time_that_a_process_waits_for_a_processor_does_not_count() -> None:
    here = HERE.format(cpu={max(os.sched_getaffinity(0))})
    others = [started(here + "print(flush=True)\nwhile True: pass") for _ in range(3)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        process, began = (
            started(here + f"\nwhile time.process_time() < {BURN_S}: pass\nprint(input())"),
            time.monotonic(),
        )
        assert communicated(process, LIMIT_S, b"there\n") == (b"there\n", b"")
        assert time.monotonic() - began > LIMIT_S, "the machine was not busy: this has shown nothing"
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_process_that_does_not_end_is_killed_and_its_output_kept() -> None:
    process = started("import time; print('said', flush=True); time.sleep(1000)")
    with pytest.raises(subprocess.TimeoutExpired) as late:
        communicated(process, LIMIT_S)
    assert late.value.output == b"said\n"
    assert process.returncode is not None


def test_a_plugin_that_hangs_in_a_thread_does_not_keep_the_kit_from_its_end() -> None:
    for path in Path(rolemesh_testing.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Thread":
                assert "daemon=True" in ast.unparse(node), f"{path}:{node.lineno}"
