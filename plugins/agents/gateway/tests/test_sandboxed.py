"""Programs in sandboxes: they talk to their own conversation, reach nothing else, and leave nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import psutil
import pytest
from tests.waiting import HANG_S, until

from rolemesh import OptionsError, RankContext
from rolemesh_agents import AgentError, ConversationFailedError, Limits, Start
from rolemesh_gateway import ProcessHarness
from rolemesh_sandbox_bubblewrap import BubblewrapOptions, BubblewrapSandbox
from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox

DEBIAN = "/usr/bin/python3"
"""An interpreter that every user may run."""
BOXES = {
    ("sandboxes", "guarded"): lambda: ProcessSandbox(ProcessOptions(isolation="namespaces")),
    ("sandboxes", "bubblewrap"): lambda: BubblewrapSandbox(BubblewrapOptions()),
    ("sandboxes", "plain"): lambda: ProcessSandbox(ProcessOptions(isolation="none", python=DEBIAN)),
}
REACHES = """
import os, socket, sys
from urllib.parse import urlsplit
mine = urlsplit(os.environ["OPENAI_BASE_URL"]).port
for port in (mine, *map(int, sys.argv[1:])):
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        print("reached", port == mine)
    except OSError as error:
        print(type(error).__name__)
"""
FILLS = """
import time
try:
    open('f', 'wb').write(b'x' * 40_000_000)
except OSError:
    time.sleep(0.6)  # the guard measures the folder meanwhile
    raise
"""
FORKS = "import os, time\nfor _ in range(60): os.fork() or time.sleep(600)\ntime.sleep(600)"
LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
open("up", "w").close()
"""
"""Leaves a process in a session of its own."""
SLEEPS = "time.sleep(600)"
BODY = '{"model": "m", "messages": [{"role": "user", "content": "go"}]}'
ASKS = f"curl -s -H \"x-api-key: $ROLEMESH_KEY\" -d '{BODY}' $ROLEMESH_URL/v1/chat/completions"


@pytest.fixture
def boxed(held, tmp_path_factory):
    """`boxed(sandbox, model, **options)`: hold one conversation whose program has a sandbox, or skip."""

    def hold(sandbox, model, **options):
        usable(sandbox, tmp_path_factory.mktemp("trial"))
        return held(model, plugins=BOXES, sandbox=sandbox, **options)

    return hold


def usable(sandbox: str, folder: Path) -> None:
    """Skip the test if this machine cannot have the sandbox."""
    made = BOXES["sandboxes", sandbox]()
    try:
        made.open(folder, Limits())
    except AgentError as error:
        pytest.skip(str(error))
    finally:
        made.close()


@pytest.mark.parametrize("sandbox", ["guarded", "bubblewrap"])
def test_an_unchanged_program_in_a_sandbox_adds_with_a_tool(boxed, adder, sandbox):
    talk = boxed(sandbox, adder, command=["{python}", "{base}/openai_chat.py"])
    (used,) = [each for each in talk.samples if each[-1]["role"] == "assistant"]
    assert [each["content"] for each in used if each["role"] == "tool"] == ["3", "7"]
    assert (talk.replies, talk.truncated, talk.reward) == (["The sum is 7."], "", None)


@pytest.mark.parametrize("sandbox", ["guarded", "bubblewrap"])
def test_a_program_in_a_sandbox_reaches_no_other_port(boxed, says, sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = ["{python}", "-c", REACHES + "sys.exit(3)", str(server.getsockname()[1])]
        with pytest.raises(ConversationFailedError, match=r"(?s)status 3.*reached True\nConnectionRefusedError$"):
            boxed(sandbox, lambda messages: says("ok"), command=command)


def test_a_socket_for_one_conversation_leads_to_no_other_one(gateway, says):
    """Even with the other one's key."""

    async def main():
        async with gateway(lambda messages: says("yes")) as here:
            other = here.server.open(Start([]))
            listener = socket.create_server(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await here.server.listen(here.door, listener)
            async with aiohttp.ClientSession() as client:
                seen = {}
                for url, door in ((address, here.door), (address, other), (here.door.url.rsplit("/", 1)[0], other)):
                    async with client.get(f"{url}/{door.number}/start", headers={"x-api-key": door.key}) as answer:
                        seen[url == address, door is other] = answer.status
            assert seen == {(True, False): 200, (True, True): 401, (False, True): 200}
            here.server.close(here.door)
            async with asyncio.timeout(HANG_S):
                while listener.fileno() >= 0:
                    await asyncio.sleep(0.005)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (FORKS, "more processes than its limit"),
        (FILLS, "File too large"),
        ("import sys; print('out'); print('bad', file=sys.stderr); sys.exit(3)", "status 3. Its last output: bad$"),
    ],
)
def test_the_limits_of_a_sandbox_hold_for_a_program(boxed, says, code, reason):
    with pytest.raises(ConversationFailedError, match=reason):
        boxed("guarded", lambda messages: says("ok"), command=["{python}", "-c", code], processes=20, disk_mb=20)


def test_a_program_that_hangs_in_a_sandbox_is_truncated(boxed, says):
    command = ["sh", "-c", f"{ASKS}; setsid sleep 600 & sleep 600"]
    talk = boxed("guarded", lambda messages: says("ok"), command=command, seconds=3.0)
    assert talk.truncated == "the program ran longer than its limit in seconds"


@pytest.mark.parametrize("killed", [False, True], ids=["cancelled", "guard killed"])
def test_a_conversation_that_ends_early_leaves_nothing_of_its_program(scripted, says, tmp_path, killed):
    usable("guarded", tmp_path)

    async def main():
        options = ProcessHarness.Options(command=["{python}", "-c", LEAVES + SLEEPS], sandbox="guarded")
        harness = ProcessHarness(options)
        await harness.setup(RankContext(base=Path(__file__).parent, tmp_dir=tmp_path, plugins=BOXES))
        me = psutil.Process()
        before, others = me.num_fds(), me.children(recursive=True)
        task = asyncio.ensure_future(harness.run(scripted(lambda messages: says("ok"))))
        async with asyncio.timeout(HANG_S):
            while not list(tmp_path.glob("*/*/up")):
                await asyncio.sleep(0.01)
            left = set(me.children(recursive=True)).difference(others)
            assert len(left) >= 3
            if killed:
                (guard,) = set(me.children()).intersection(left)
                guard.kill()
                with pytest.raises(ConversationFailedError, match="the guard of the program was killed"):
                    await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            while any(each.is_running() for each in left):
                assert killed, "the guard waits for all processes"
                await asyncio.sleep(0.01)
            assert not list(tmp_path.glob("*/*"))
            while me.num_fds() > before:
                await asyncio.sleep(0.01)
        await harness.close()

    asyncio.run(main())


def test_nothing_is_left_of_a_sandboxed_program_whose_rank_is_killed(tmp_path):
    usable("guarded", tmp_path)
    rank = f"""
import asyncio, socket, sys
from pathlib import Path
from rolemesh_agents import Limits
from rolemesh_gateway.sandboxed import Client, SandboxedProgram
from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox
async def attach(listener): pass
async def main():
    client = Client([sys.executable, "-c", {LEAVES + SLEEPS!r}], {{}}, "", [])
    SandboxedProgram(ProcessSandbox(ProcessOptions()), Limits(seconds=600), client, Path(sys.argv[1]), attach, print)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", rank, str(tmp_path)])
    until(lambda: list(tmp_path.glob("*/up")))
    left = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs(left)
    until(lambda: not list(tmp_path.iterdir()))


def test_a_sandbox_without_a_network_of_its_own_is_refused_at_the_start(held, says, tmp_path_factory):
    usable("plain", tmp_path_factory.mktemp("trial"))
    with pytest.raises(AgentError, match=r"plain processes have none \(isolation: none\)") as raised:
        held(lambda messages: says("ok"), plugins=BOXES, sandbox="plain", command=["true"])
    assert "allow namespaces" in raised.value.remedy


def test_a_sandbox_that_the_job_file_does_not_list_is_refused_before_the_start():
    job = SimpleNamespace(declared=dict.fromkeys(BOXES))
    options = ProcessHarness.Options(command=["true"], sandbox="proces")
    with pytest.raises(OptionsError, match="lists no 'proces' under plugins") as raised:
        ProcessHarness.check_job(options, job)
    assert "guarded" in raised.value.remedy
    ProcessHarness.check_job(options.model_copy(update={"sandbox": "plain"}), job)
