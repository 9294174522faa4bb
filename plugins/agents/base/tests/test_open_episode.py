"""An episode's process: whatever its code does with a model's text ends its own conversation only."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import tempfile  # noqa: F401 (for a text)
import time  # noqa: F401 (for a text)
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from rolemesh_agents import AgentError, Episode, Observation, Outcome, Reward, SandboxLostError, Start, Task, ToolCall
from rolemesh_agents.episodes import serving
from rolemesh_agents.episodes.open_episode import OpenEpisode
from rolemesh_agents.episodes.plain_errors import EpisodeRaisedError
from rolemesh_agents.episodes.worker import LateError
from rolemesh_processes.facts import start_time


class Trusting(Episode):
    """Evaluates what the model says, in all of its methods."""

    said = ""

    def reset(self, task: Task, seed: int) -> Start:
        return Start([{"role": "user", "content": "1/3?"}])

    def call(self, call: ToolCall) -> Observation:
        return Observation(str(eval(call.name)))

    def reply(self, content: str) -> Outcome:
        self.said = content
        return Outcome()

    def reward(self) -> Reward:
        found = eval(self.said)
        return Reward(float(found(*()) if callable(found) else found))


class Awaiting(Trusting):
    async def reward(self) -> Reward:  # type: ignore[override]
        return Reward(float(eval(self.said)))


def opened(episode: Episode, **more: Any) -> OpenEpisode:
    return OpenEpisode(episode, None, content_bytes=1000, state_bytes=1000, **more)


def judged(said: str, episode: type[Episode] = Trusting, limit: float = 60.0, **more: Any) -> Any:
    async def plays() -> Any:
        played = opened(episode(), **more)
        await played.begin(Task(0, None), 0, 60.0)
        await played.act("reply", {"content": said}, 60.0)
        try:
            return (await played.reward(limit))["value"]
        finally:
            await played.close()

    return asyncio.run(plays())


def crash() -> Any:
    return ctypes.string_at(0)


def alarmed() -> float:
    """Take the timeout from a signal, as math_verify does, which only the main thread can."""

    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        while True:
            pass
    except TimeoutError:
        return 0.5


@pytest.mark.parametrize("episode", [Trusting, Awaiting])
def test_a_reward_that_takes_its_timeout_from_a_signal_has_it(episode: type[Episode]) -> None:
    assert judged("alarmed()", episode) == 0.5


def test_a_reward_may_run_an_event_loop_of_its_own() -> None:
    assert judged("asyncio.run(asyncio.sleep(0, 3))") == 3.0


def test_a_reward_may_use_processes_of_its_own() -> None:
    assert judged("__import__('multiprocessing').Pool(1).apply(abs, (-2,))") == 2.0


@pytest.mark.parametrize(
    ("said", "error", "reason"),
    [
        ("os._exit(3)", EpisodeRaisedError, "process has ended with the exit status 3 in Trusting.reward"),
        ("crash()", EpisodeRaisedError, "process has ended with the signal SIGSEGV in Trusting.reward"),
        ("os.kill(os.getpid(), 9)", SandboxLostError, "the episode's process has ended with the signal SIGKILL"),
        ("exit(4)", EpisodeRaisedError, r"the episode raised RuntimeError: it raised SystemExit\(4\)"),
        ("1 / 0", EpisodeRaisedError, "the episode raised ZeroDivisionError: division by zero"),
        ("len(bytes(400_000_000))", EpisodeRaisedError, "the episode raised MemoryError"),
        ("float('nan')", Exception, "Reward.value is nan, not a finite number"),
    ],
)
def test_a_reward_that_ends_or_fails_is_an_error_with_its_reason(
    said: str, error: type[Exception], reason: str
) -> None:
    for _ in range(2):
        with pytest.raises(error, match=reason):
            judged(said, memory_mb=300)


@pytest.mark.parametrize("said", ["9**9**9", "time.sleep(99)"])
def test_a_reward_that_hangs_is_late_and_leaves_no_process(said: str) -> None:
    async def plays() -> int:
        played, other = opened(Trusting()), opened(Trusting())
        for each in (played, other):
            await each.begin(Task(0, None), 0, 60.0)
        await played.act("reply", {"content": said}, 60.0)
        late = asyncio.create_task(played.reward(0.3))
        await other.act("reply", {"content": "2"}, 60.0)  # nobody waits for the hanging one
        assert (await other.reward(60.0))["value"] == 2
        with pytest.raises(LateError, match=r"reward has not returned within 0.3 s; it is in \S+ \(.*\d\)"):
            await late
        assert played.hangs
        assert played._process is not None
        await played.close()
        await other.close()
        return played._process.pid

    pid = asyncio.run(plays())
    until(lambda: start_time(pid) < 0)


def test_a_late_tool_is_told_once_and_waited_for_at_the_next_action() -> None:
    async def plays() -> None:
        played = opened(Trusting())
        await played.begin(Task(0, None), 0, 60.0)
        name = "[time.sleep(0.4), 7][1]"
        answer = await played.act("call", {"name": name, "arguments": {}, "id": "x"}, 0.1)
        assert answer["late"]
        assert "did not answer within 0.1 s" in answer["content"]
        answer = await played.act("call", {"name": "1 + 1", "arguments": {}, "id": "y"}, 60.0)
        assert answer["content"] == "2"
        await played.close()

    asyncio.run(plays())


def forge(kind: bytes) -> float:
    """Write what an answer looks like to all descriptors that this process may have."""
    for number in range(1024):
        try:
            os.write(number, kind + b"\x03\x00\x00\x00abc")
        except OSError:
            continue
    return 1.0


@pytest.mark.parametrize("said", ["forge(b'A')", "forge(b'S')", "forge(b'x')"])
def test_an_episode_that_sends_more_than_its_answers_fails_or_gets_what_it_had(said: str) -> None:
    found = 1.0
    with suppress(EpisodeRaisedError):
        found = judged(said)
    assert found == 1.0


def test_an_episode_in_the_rank_is_not_forked() -> None:
    class Here(Trusting):
        own_process = False

    assert judged("os.getpid()", Here) == os.getpid()
    assert judged("os.getppid()") == os.getpid()


def test_tasks_of_an_episode_go_on_between_its_actions() -> None:
    class Ticking(Trusting):
        def __init__(self) -> None:
            self.ticks: Callable[[], bool] = lambda: False

        async def call(self, call: ToolCall) -> Observation:  # type: ignore[override]
            if call.name == "start":
                self.task = asyncio.create_task(asyncio.sleep(0.01))
            return Observation(str(self.task.done()))

    async def plays() -> None:
        played = opened(Ticking())
        await played.begin(Task(0, None), 0, 60.0)
        assert (await played.act("call", {"name": "start", "arguments": {}, "id": ""}, 60.0))["content"] == "False"
        found = "False"
        while found == "False":
            found = (await played.act("call", {"name": "", "arguments": {}, "id": ""}, 60.0))["content"]
        await played.close()

    asyncio.run(plays())


def test_an_error_of_the_plugin_keeps_its_remedy() -> None:
    class Short(Trusting):
        def reset(self, task: Task, seed: int) -> Start:
            raise AgentError("no data", remedy="download it")

    async def begins() -> None:
        played = opened(Short())
        with pytest.raises(EpisodeRaisedError, match=r"the episode raised AgentError: no data\n  → download it"):
            await played.begin(Task(0, None), 0, 60.0)
        await played.close()

    asyncio.run(begins())


def test_a_model_s_text_changes_no_files_but_temporary_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EpisodeRaisedError, match=r"PermissionError: .*'pwned' \(an episode that has begun changes files"
    ):
        judged("open('pwned', 'w').write('x')")
    with pytest.raises(EpisodeRaisedError, match="PermissionError"):
        judged(f"os.unlink({__file__!r})")
    assert judged("open(tempfile.mkstemp()[1], 'w').write('xy')") == 2
    assert judged("subprocess.run(['sh', '-c', 'echo > pwned']).returncode != 0") == 1
    assert not list(tmp_path.iterdir())

    class Writing(Trusting):
        writes = True

    assert judged("open('written', 'w').write('x')", Writing) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["written"]


def test_modules_that_an_episode_imports_at_its_begin_are_imported_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_to_import.py").write_text("import os; WHO = os.getpid()")

    class Importing(Trusting):
        def reset(self, task: Task, seed: int) -> Start:
            import slow_to_import

            return Start([{"role": "user", "content": str(slow_to_import.WHO)}])

    async def begun() -> str:
        played = opened(Importing())
        start = await played.begin(Task(0, None), 0, 60.0)
        await played.close()
        return str(start["messages"][0]["content"])

    assert asyncio.run(begun()) != str(os.getpid())
    assert asyncio.run(begun()) == str(os.getpid())
    del sys.modules["slow_to_import"]


def test_an_episode_does_not_flood_the_log_of_its_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_BYTES", 100_000)
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    kept = os.dup(1)
    os.dup2(log, 1)
    try:
        with pytest.raises(EpisodeRaisedError, match="File too large"):
            judged("[os.write(1, b'x' * 1000) for _ in range(1_000_000)]")
    finally:
        os.dup2(kept, 1)
    assert (tmp_path / "log").stat().st_size == 100_000


def test_no_episode_outlives_a_rank_that_is_killed() -> None:
    code = """if True:
        import asyncio
        from rolemesh_agents import Episode, Reward, Start, Task
        from rolemesh_agents.episodes.open_episode import OpenEpisode
        class Hanging(Episode):
            def reset(self, task, seed): return Start([])
            def reward(self):
                while True: pass
        async def plays():
            played = OpenEpisode(Hanging(), None, content_bytes=1, state_bytes=1)
            await played.begin(Task(0, None), 0, 60.0)
            print(played._process.pid, flush=True)
            await played.reward(600.0)
        asyncio.run(plays())
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        pid = int(rank.stdout.readline())
        assert start_time(pid) >= 0
        rank.kill()
    until(lambda: start_time(pid) < 0)
