"""The sandbox `bubblewrap`: what a command sees, and what happens without the program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_bubblewrap import BubblewrapOptions, BubblewrapSandbox
from rolemesh_sandbox_bubblewrap.sandbox import arguments
from rolemesh_testing import SandboxConformance


class TestBubblewrap(SandboxConformance):
    plugin = "bubblewrap"
    bad_options = ({"bwrap": 1}, {"visible": "/srv"})


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[BubblewrapSandbox]:
    (tmp_path / "folder").mkdir()
    made = BubblewrapSandbox(BubblewrapOptions())
    try:
        made.open(tmp_path / "folder", Limits())
    except AgentError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_command_sees_the_system_and_no_other_folders(sandbox: BubblewrapSandbox) -> None:
    found = set(sandbox.run("ls /").output.split())
    assert {"usr", "tmp", "proc", "dev"} <= found
    assert not found & {"home", "boot", "media", "mnt", "opt", "srv", "sys", "run", "var"}
    assert sandbox.run("cat /etc/shadow /etc/machine-id").code != 0


@pytest.mark.parametrize(
    "command",
    [
        "touch /file",
        "touch /usr/file",
        "touch /dev/file",
        "cat /proc/sys/kernel/core_pattern > /tmp/old; cat /tmp/old > /proc/sys/kernel/core_pattern",
        "unshare --user --map-root-user true",
        "mount -t tmpfs none /tmp",
    ],
)
def test_a_command_cannot_change_the_machine(sandbox: BubblewrapSandbox, command: str) -> None:
    assert sandbox.run(command).code != 0


def test_a_command_cannot_take_the_status_from_the_process_above_it(sandbox: BubblewrapSandbox) -> None:
    steal = (
        "import ctypes, os, time; got = ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 9, 0)\n"  # pidfd_getfd
        "if got >= 0: os.write(got, b'0'); time.sleep(1)\n"
        "os._exit(3)"
    )
    assert sandbox.run(["python", "-c", steal]).code == 3


def test_nothing_is_left_unenforced(sandbox: BubblewrapSandbox) -> None:
    assert sandbox.unenforced() == ()


def test_a_visible_folder_can_be_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("data")
    made = BubblewrapSandbox(BubblewrapOptions(visible=[str(tmp_path / "data")]))
    try:
        made.open(tmp_path / "folder", Limits())
    except AgentError as error:
        pytest.skip(str(error))
    assert made.run(f"cat {tmp_path}/data/file").output == "data"
    assert made.run(f"touch {tmp_path}/data/new").code != 0
    made.close()


def test_a_missing_program_is_an_error_that_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-bwrap is not on the path") as raised:
        BubblewrapSandbox(BubblewrapOptions(bwrap="no-such-bwrap")).open(tmp_path, Limits())
    assert "apt install bubblewrap" in str(raised.value.remedy)


@pytest.mark.parametrize("version", ["bubblewrap 0.6.1", "something else", ""])
def test_an_old_program_is_an_error(version: str, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    with pytest.raises(AgentError, match="too old") as raised:
        BubblewrapSandbox(BubblewrapOptions(bwrap=str(program))).open(tmp_path, Limits())
    assert "0.8" in str(raised.value.remedy)


def test_the_network_is_shared_only_on_request() -> None:
    assert "--share-net" not in arguments("/folder", Limits(), ())
    assert "--share-net" in arguments("/folder", Limits(network=True), ())


def test_a_refusal_names_its_reason(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.9.0 && exit\n"
        "echo 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    os.mkdir(tmp_path / "folder")
    with pytest.raises(AgentError, match="setting up uid map: Permission denied") as raised:
        BubblewrapSandbox(BubblewrapOptions(bwrap=str(program))).open(tmp_path / "folder", Limits())
    assert "namespaces" in str(raised.value.remedy)
