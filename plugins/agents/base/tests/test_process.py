"""The sandbox `guarded`: what a command sees, in namespaces and without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolemesh_agents import AgentError, Limits, SandboxLostError
from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox
from rolemesh_testing import SandboxConformance

DEBIAN = "/usr/bin/python3"
"""An interpreter that every user may run."""

STEAL = """
import ctypes, os, time
libc = ctypes.CDLL(None)
for pid in (1, os.getppid()):
    got = libc.syscall(438, os.pidfd_open(pid), 9, 0)  # pidfd_getfd
    if got >= 0:
        os.write(got, b"0")
        time.sleep(1)
os._exit(3)
"""
KEEP = """
import os, time
held = []
for name in "abc":
    held.append(open(name, "wb"))
    os.unlink(name)
    held[-1].write(b"z" * 12_000_000)
    held[-1].flush()
time.sleep(9)
"""
MEMORY = """
import os, time
held = [os.memfd_create("m") for _ in range(40)]
for each in held:
    os.write(each, b"z" * 10_000_000)
time.sleep(9)
"""
ISOLATED = """
import ctypes, socket
print(ctypes.CDLL(None).syscall(248, b"user", b"name", b"value", ctypes.c_size_t(5), -3))  # add_key
try:
    print(socket.socket(socket.AF_VSOCK))
except OSError as error:
    print(error.strerror)
"""


class TestProcess(SandboxConformance):
    plugin = "guarded"
    bad_options = ({"isolation": "docker"}, {"env": ["A=b"]})


def opened(folder: Path, **options: object) -> ProcessSandbox:
    """Return an open sandbox, or skip if this machine cannot have it."""
    folder.mkdir(exist_ok=True)
    sandbox = ProcessSandbox(ProcessOptions.model_validate(options))
    try:
        sandbox.open(folder, Limits(seconds=10, memory_mb=300, disk_mb=20, processes=20, output_kb=8))
    except AgentError as error:
        pytest.skip(str(error))
    return sandbox


@pytest.mark.soak  # the tests below have what differs
class TestPlainProcess(TestProcess):
    """Without namespaces. As root, commands run as a user without rights."""

    options = {"isolation": "none", **({"python": DEBIAN} if os.getuid() == 0 else {})}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[ProcessSandbox]:
    made = opened(tmp_path / "folder", isolation="namespaces")
    yield made
    made.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ProcessSandbox]:
    if os.getuid() == 0 and not os.path.exists(DEBIAN):
        pytest.skip("no interpreter that every user may run")
    made = opened(tmp_path / "folder", isolation="none", python=DEBIAN if os.getuid() == 0 else "")
    yield made
    made.close()


@pytest.mark.parametrize("which", ["sandbox", "plain"])
def test_a_command_cannot_take_its_status_keys_of_the_user_or_room_that_nobody_counts(
    request: pytest.FixtureRequest, which: str
) -> None:
    made: ProcessSandbox = request.getfixturevalue(which)
    assert made.run([made.python, "-c", STEAL]).code == 3
    assert made.run([made.python, "-c", ISOLATED]).output == "-1\nPermission denied\n"
    assert made.run([made.python, "-c", KEEP]).ended == "disk_mb"
    assert made.run([made.python, "-c", MEMORY]).ended == "memory_mb"


def test_in_namespaces_nothing_is_left_unenforced(sandbox: ProcessSandbox) -> None:
    assert sandbox.unenforced() == ()


@pytest.mark.parametrize(
    "command",
    [
        "touch /etc/rolemesh-was-here",
        "cat /proc/sys/kernel/core_pattern > /tmp/old; cat /tmp/old > /proc/sys/kernel/core_pattern",
        "mount -t tmpfs none /mnt",
        "unshare --user --map-root-user true",
        "ls /dev/mem /dev/vda /dev/sda /dev/kmsg",
        "touch /dev/file",
        "touch /run/file",
    ],
)
def test_a_command_in_namespaces_cannot_change_the_machine(sandbox: ProcessSandbox, command: str) -> None:
    assert sandbox.run(command).code != 0


def test_commands_of_every_user_may_write_to_dev_null(sandbox: ProcessSandbox) -> None:
    """Linux refuses ``> /dev/null`` to all but root in a folder with the sticky bit that all may write."""
    assert sandbox.run("echo gone > /dev/null && stat -c %a /dev").output == "755\n"


def test_a_command_in_namespaces_has_no_capabilities(sandbox: ProcessSandbox) -> None:
    found = dict(line.split(":\t") for line in sandbox.run("grep Cap /proc/self/status").output.splitlines())
    assert {found[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}


def test_a_command_in_namespaces_sees_no_other_processes(sandbox: ProcessSandbox) -> None:
    numbers = [int(each) for each in sandbox.run("ls /proc").output.split() if each.isdigit()]
    assert max(numbers) < 10


def test_processes_of_a_sandbox_reach_each_other_over_the_loopback(sandbox: ProcessSandbox) -> None:
    program = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "print('connected')"
    )
    assert sandbox.run(["python", "-c", program]).output == "connected\n"


def test_a_temporary_file_ends_with_its_command(sandbox: ProcessSandbox) -> None:
    assert sandbox.run("echo a > /tmp/a; echo b > b; cat /tmp/a").output == "a\n"
    assert sandbox.run("ls /tmp/a").code != 0
    assert sandbox.run("cat b").output == "b\n"


def test_a_plain_command_says_what_is_not_enforced(plain: ProcessSandbox) -> None:
    assert any("files" in line for line in plain.unenforced())


def test_a_plain_command_has_no_network(plain: ProcessSandbox) -> None:
    found = plain.run(["python3", "-c", "import socket; socket.socket(socket.AF_INET)"])
    assert "PermissionError" in found.output


def test_a_plain_command_cannot_signal_the_rank(plain: ProcessSandbox) -> None:
    if os.getuid():
        pytest.skip("an ordinary user's commands can; unenforced says so")
    assert plain.run(["/bin/kill", "-0", str(os.getpid())]).code != 0


def test_a_plain_command_cannot_signal_all_processes_of_its_user(plain: ProcessSandbox) -> None:
    """The signal 0 only asks whether it may be sent."""
    found = plain.run(["python3", "-c", "import os; os.kill(-1, 0)"])
    assert "PermissionError" in found.output


@pytest.mark.parametrize("make", ["shmget(0, 4096, 0o1600)", "msgget(0, 0o1600)", "semget(0, 1, 0o1600)"])
def test_a_plain_command_makes_no_memory_that_outlives_it(plain: ProcessSandbox, make: str) -> None:
    program = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.{make}, ctypes.get_errno())"
    assert plain.run(["python3", "-c", program]).output == "-1 13\n"


def test_files_that_a_plain_command_leaves_elsewhere_go_with_the_sandbox(plain: ProcessSandbox) -> None:
    if os.getuid():
        assert any("remain" in line for line in plain.unenforced())
        return
    made = [f"{place}/rolemesh-left-{os.getpid()}" for place in ("/tmp", "/var/tmp", "/dev/shm")]
    plain.run(
        "; ".join(
            f"mkdir -p {each}/a/b; echo x > {each}/a/b/c; ln -s /etc {each}/a/d; chmod 0 {each}/a" for each in made
        )
    )
    assert all(map(os.path.exists, made))
    plain.close()
    assert not any(map(os.path.lexists, made))
    assert os.path.exists("/etc/passwd")


def test_a_plain_sandbox_removes_its_folder_for_temporary_files(plain: ProcessSandbox) -> None:
    folder = plain.run("echo -n $TMPDIR; echo x > $TMPDIR/x").output
    assert os.path.isdir(folder)
    plain.close()
    assert not os.path.exists(folder)


def test_a_refusal_of_the_kernel_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """A process without namespaces to give: the limit of its user's namespaces is zero in a namespace of its own."""
    program = (
        "import sys; from pathlib import Path; from rolemesh_agents import Limits\n"
        "from rolemesh_sandbox_process import ProcessOptions, ProcessSandbox\n"
        "sandbox = ProcessSandbox(ProcessOptions(isolation='namespaces'))\n"
        "sandbox.open(Path(sys.argv[1]), Limits())\n"
    )
    refusing = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", refusing, "sh", sys.executable, "-c", program]
    if subprocess.run([*command[:5], "echo 0 > /proc/sys/user/max_user_namespaces"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces of users")
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert "the kernel refuses namespaces: unshare: No space left on device" in done.stderr
    assert "→" in done.stderr


def test_a_guard_that_is_killed_loses_its_sandbox_and_no_more(tmp_path: Path) -> None:
    sandbox = opened(tmp_path / "folder")
    try:
        sandbox.run("true")
        os.kill(sandbox._guards["run"].pid, signal.SIGKILL)
        with pytest.raises(SandboxLostError, match="the guard of the sandbox has ended"):
            sandbox.run("true")
        assert sandbox.run("echo again").output == "again\n"
    finally:
        sandbox.close()


def test_an_object_has_the_same_address_in_each_sandbox(tmp_path: Path) -> None:
    refused = subprocess.run(["setarch", "--addr-no-randomize", "true"], check=False, capture_output=True).returncode
    if refused:
        pytest.skip("the kernel refuses personality(2)")
    outputs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sandbox = ProcessSandbox(ProcessOptions())
        sandbox.open(tmp_path / name, Limits(seconds=60))
        outputs.append([sandbox.run([DEBIAN, "-c", "print(object())"]), sandbox.cell("object()")])
        sandbox.close()
    assert outputs[0] == outputs[1]
    assert "object at 0x" in outputs[0][1].output
