"""Workers that judge texts: whatever one of them does costs its own row, and no other."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from rolemesh_processes import confinement, judging_worker
from rolemesh_processes.facts import start_time
from rolemesh_processes.forking import Frames
from rolemesh_processes.judging import Failed, JudgeLimits, Judges, own_code


def judge(text: Any) -> Any:
    """A judge that trusts the text, and evaluates it."""
    return eval(text) if isinstance(text, str) else text(*[])


def length(text: str) -> int:
    return len(text)


def flood() -> int:
    for _ in range(2_000):
        print("x" * 1000)
        sys.stderr.write("x" * 1000)
    return 1


def forge() -> int:
    for number in range(200):
        try:
            os.write(number, b"D\x01\x00\x00\x00\x63" * 3)
        except OSError:
            continue
    return 1


def overflow() -> Any:
    ctypes.string_at(0)


def test_messages_before_one_that_is_too_long_are_not_lost() -> None:
    frames = Frames(20)
    short, long = b"D\x01" + bytes(3) + b"7", b"D\xff" + bytes(3)

    assert frames.feed(short + long) == [(b"D", b"7")]
    with pytest.raises(ValueError, match="260 bytes"):
        frames.feed(b"")


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    made = Judges(judge, JudgeLimits(seconds=0.5, memory_mb=300))
    yield made
    made.close()


UNOPENED = errno.EACCES if confinement._landlock() >= confinement._TRUNCATE_SINCE else errno.EPERM
"""Why a sealed process opens no file for writing: Landlock or the filter of system calls refuses it."""
HOSTILE = {
    "a hanging one": ("9**9**9", "it took more than 0.5 s of processor time"),
    "a sleeping one": ("__import__('time').sleep(99)", "it waited for more than 0.5 s"),
    "one that exits": ("exit(4)", "SystemExit: 4"),
    "one that ends the process": ("__import__('os')._exit(3)", "it has ended its process with the exit status 3"),
    "one that kills the process": (overflow, "it has ended its process with the signal SIGSEGV"),
    "one that takes memory": ("len(bytes(400_000_000))", "MemoryError"),
    "one that writes a file": (
        "open('pwned', 'w')",
        f"PermissionError: [Errno {UNOPENED}] {os.strerror(UNOPENED)}: 'pwned'",
    ),
    "one that removes files": (f"__import__('os').unlink({__file__!r})", "PermissionError: [Errno 1]"),
    "one that starts a program": ("__import__('subprocess').run(['true'])", "PermissionError: [Errno 1]"),
    "one that forks": (os.fork, "PermissionError: [Errno 1]"),
    "one that opens a socket": (socket.socket, "PermissionError: [Errno 1]"),
    "one that signals others": ("__import__('os').kill(__import__('os').getppid(), 9)", "PermissionError: [Errno 1]"),
    "one with a long result": ("'x' * 3_000_000", "its result cannot be read"),
    "one with a result of no plain type": ("object()", "TypeError: Encoding objects of type object is unsupported"),
    "one that does not parse": ("1 +", "SyntaxError: invalid syntax"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_text_costs_its_own_row_only(judges: Judges, what: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text, reason = HOSTILE[what]
    found = judges.judge([("1 + 1",), (text,), ("2 + 2",), ("3",)])
    assert found[0] == 2
    assert isinstance(found[1], Failed)
    assert found[1].reason.startswith(reason)
    assert found[2:] == [4, 3]
    assert not list(tmp_path.iterdir())


def test_the_same_text_fails_with_the_same_reason_in_other_workers() -> None:
    reasons = []
    for _ in range(2):
        judges = Judges(judge, JudgeLimits(seconds=0.2, memory_mb=300))
        reasons.append(judges.judge([("9**9**9",), ("exit()",), ("len(bytes(400_000_000))",)]))
        judges.close()
    assert reasons[0] == reasons[1]


def test_output_and_forged_results_do_not_reach_the_role(judges: Judges, capfd: pytest.CaptureFixture[str]) -> None:
    assert judges.judge([(flood,), (forge,), (length.__name__,)])[:2] == [1, 1]
    assert capfd.readouterr() == ("", "")


def test_code_of_a_text_changes_no_other_judgement(judges: Judges) -> None:
    change = "globals().update(eval=lambda text: 99) or 7"
    assert judges.judge([(change,), ("1 + 1",), ("2",)]) == [7, 2, 2]
    assert judges.judge([("1 + 1",)]) == [2]


def test_a_worker_goes_on_if_no_code_of_a_text_has_run() -> None:
    def pid(text: str) -> list[int]:
        with own_code():
            eval("len([1])")
        return [eval("len([1])"), os.getpid()]

    judges = Judges(pid)
    assert len({process for _, process in judges.judge([("x",)] * 100)}) == 1
    judges.close()
    judges = Judges(lambda text: [eval(text), os.getpid()])
    assert len({process for _, process in judges.judge([("1",), ("2 + 2",), ("[3]",)])}) == 1
    assert len({process for _, process in judges.judge([("len([1])",)] * 3)}) == 3
    judges.close()


class Open(dict[str, Any]):
    """A namespace in which every name means something."""

    def __missing__(self, name: str) -> str:
        return name


def test_a_text_that_ends_at_an_unknown_name_spends_no_worker() -> None:
    def evaluated(text: str, *spaces: Any) -> list[Any]:
        try:
            return [os.getpid(), repr(eval(text, *spaces))]
        except NameError as error:
            return [os.getpid(), str(error)]

    judges = Judges(evaluated)
    found = judges.judge([("answer",), ("the_answer(5)",), ("[1, some + other]",), ("it.has.a",), ("x[os]",)])
    names = ("answer", "the_answer", "some", "it", "x")
    assert [said for _, said in found] == [f"name '{name}' is not defined" for name in names]
    assert len({process for process, _ in found}) == 1
    known = [("text",), ("Judges",), ("print",), ("[n for n in text]",), ("(n := 1)",), ("lambda: other",)]
    known += [("x", {"x": 1}), ("x", {}, {"x": 1}), ("x", {}, Open())]
    found = judges.judge([("other",), *known])
    assert len({process for process, _ in found}) == len(found) - 1
    judges.close()


def test_a_judge_that_keeps_much_of_one_text_leaves_the_next_its_memory() -> None:
    kept: list[Any] = []

    def cached(text: str) -> int:
        kept.append(eval(text))
        return len(kept[-1])

    judges = Judges(cached, JudgeLimits(memory_mb=300))
    assert judges.judge([("'x' * 120_000_000",)] * 6) == [120_000_000] * 6
    judges.close()


def test_a_judge_that_takes_its_timeout_from_a_signal_has_it() -> None:
    def alarmed(text: str) -> str:
        import signal

        def late(*_: Any) -> None:
            raise TimeoutError("late")

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            while True:
                pass
        except TimeoutError:
            return f"{text} is late"
        finally:
            signal.signal(signal.SIGALRM, before)

    judges, found = Judges(alarmed), []
    thread = threading.Thread(target=lambda: found.extend(judges.judge([("it",)])))
    thread.start()
    thread.join()
    judges.close()
    assert found == ["it is late"]


def test_a_slow_judgement_delays_no_other_thread() -> None:
    judges, order = Judges(judge, JudgeLimits(seconds=1.0)), []
    judges.start()

    def ask(text: str) -> None:
        judges.judge([(text,)])
        order.append(text)

    slow = threading.Thread(target=ask, args=("9**9**9",))
    slow.start()
    ask("1")
    slow.join()
    judges.close()
    assert order == ["1", "9**9**9"]


def test_a_limit_that_the_kernel_does_not_enforce_is_in_the_log_once(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(judging_worker, "seal", lambda: ["the kernel has no Landlock"])
    judges = Judges(judge)
    try:
        assert judges.judge([("1 + 1",), ("2 + 2",)]) == [2, 4]
        assert [record.getMessage() for record in caplog.records] == [
            "Texts of a model are judged with fewer limits than usual: the kernel has no Landlock"
        ]
    finally:
        judges.close()


def test_each_worker_has_what_was_prepared_and_its_code_is_no_strangers() -> None:
    prepared: list[int] = []

    def prepare() -> None:
        with own_code():
            prepared.append(eval("os.getpid()"))

    def both(text: str) -> list[Any]:
        return [prepared[0], eval(text), os.getpid()]

    judges = Judges(both, prepare=prepare)
    try:
        (zygote, _, first), (again, same, second) = judges.judge([("os.getpid()",), ("os.getpid()",)])
        assert zygote == again
        assert first == second == same
        assert not prepared
    finally:
        judges.close()


def test_a_worker_has_its_own_socket_and_no_other_descriptor() -> None:
    def opened(text: str) -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing
                found.append(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
        return [*sorted({*found} - {os.devnull}), str(found.count("socket"))]

    def prepare() -> None:
        os.open(__file__, os.O_RDONLY)

    for sealed in (True, False):
        judges = Judges(opened, sealed=sealed, prepare=prepare)
        assert judges.judge([("x",)]) == [["socket", "1"]]
        judges.close()


def test_workers_judge_on_if_the_preparation_fails() -> None:
    def prepare() -> None:
        raise OSError

    judges = Judges(length, prepare=prepare)
    try:
        assert judges.judge([("four",)]) == [4]
    finally:
        judges.close()


def test_a_worker_that_is_killed_from_outside_costs_no_row() -> None:
    judges = Judges(lambda text: os.getpid())
    (first,) = judges.judge([("x",)])
    os.kill(first, 9)
    assert judges.judge([("x",)] * 3)[0] != first
    zygote = judges._zygote
    assert zygote is not None
    os.kill(zygote.pid, 9)
    assert all(isinstance(pid, int) for pid in judges.judge([("x",)] * 3))
    judges.close()


def test_no_worker_outlives_a_role_that_is_killed() -> None:
    code = """if True:
        import os, time
        from rolemesh_processes.judging import Judges, JudgeLimits
        def judge(text):
            print(text)
            while True: pass
        judges = Judges(judge, JudgeLimits(seconds=99))
        judges.start()
        print(judges._zygote.pid, judges._idle[0].pid, flush=True)
        judges.judge([("x",)])
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as role:
        assert role.stdout is not None
        pids = list(map(int, role.stdout.readline().split()))
        assert all(start_time(pid) >= 0 for pid in pids)
        role.kill()
    until(lambda: all(start_time(pid) < 0 for pid in pids))


def test_results_are_those_of_the_judge_itself() -> None:
    judges = Judges(lambda value: value)
    values = [None, 1, -0.5, math.inf, "ä", b"x", [1, [2]], {"a": {"b": 1.5}}]
    assert judges.judge([(value,) for value in values]) == values
    assert judges.judge([]) == []
    judges.close()


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="a message of"):
        Frames(100).feed(b"D\xff\xff\xff\xff")
