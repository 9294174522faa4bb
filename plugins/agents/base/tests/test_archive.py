"""Archives of folders: the same bytes for the same content, whatever hostile commands have made."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from rolemesh_agents import AgentError
from rolemesh_sandbox_process.archive import pack, unpack
from rolemesh_sandbox_process.guard.emptying import empty


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def fill(path: Path, *, backwards: bool = False) -> None:
    names = ["b", "a", "ü ", "x/y/z"]
    for name in reversed(names) if backwards else names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name * 3000)
    (path / "run").write_text("#!/bin/sh\n")
    (path / "run").chmod(0o755)


def test_the_order_of_writing_does_not_change_the_bytes(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "1"), folder(tmp_path / "2")
    fill(one)
    fill(two, backwards=True)
    assert pack(one, 9, begun=[1]) == pack(two, 9, begun=[1])


def test_files_of_a_later_command_are_newer_and_the_clock_does_not_change_the_bytes(tmp_path: Path) -> None:
    one, two, other = (folder(tmp_path / name) for name in "123")
    for place, (first, second) in ((one, (100, 200)), (two, (1000, 5000))):
        fill(place)
        for path in place.rglob("*"):
            os.utime(path, (first + len(path.name), first))
        os.utime(place / "b", (second, second + 7))
    state = pack(one, 9, begun=[90 * 10**9, 190 * 10**9])
    assert state == pack(two, 9, begun=[10**12, 5 * 10**12])
    unpack(state, other)
    assert (other / "b").stat().st_mtime == (other / "a").stat().st_mtime + 1
    assert pack(other, 9, begun=[time.time_ns()]) == state


def test_unpacking_repeats_the_folder(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "1"), folder(tmp_path / "2")
    fill(one)
    (two / "old").write_text("was here before")
    state = pack(one, 9)
    unpack(state, two)
    assert pack(two, 9) == state
    assert sorted(os.listdir(two)) == sorted(os.listdir(one))
    assert os.access(two / "run", os.X_OK)


def test_a_link_out_of_the_folder_stays_a_link_and_is_not_followed(tmp_path: Path) -> None:
    one, two, secret = folder(tmp_path / "1"), folder(tmp_path / "2"), tmp_path / "secret"
    secret.write_text("secret")
    (one / "file").symlink_to(secret)
    (one / "folder").symlink_to(tmp_path)
    state = pack(one, 9)
    assert b"secret" not in state.replace(os.fsencode(secret), b"")
    unpack(state, two)
    assert os.readlink(two / "folder") == str(tmp_path)
    empty(str(two))
    assert secret.read_text() == "secret"


def test_hard_links_are_stored_once(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "1"), folder(tmp_path / "2")
    (one / "a").write_bytes(os.urandom(100_000))
    for number in range(50):
        os.link(one / "a", one / f"b{number}")
    state = pack(one, 9)
    assert len(state) < 200_000
    unpack(state, two)
    assert (two / "a").stat().st_nlink == 51


def test_holes_and_zeros_need_no_space_and_are_the_same(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "1"), folder(tmp_path / "2")
    with (one / "file").open("wb") as file:
        file.write(b"begin")
        file.seek(10 << 30)
        file.write(b"end")
    (one / "empty").touch()
    (one / "zeros").write_bytes(bytes(100_000))
    with (two / "zeros").open("wb") as file:
        file.truncate(100_000)
    assert len(pack(one, 1)) < 20_000
    unpack(pack(one, 1), two)
    with (two / "file").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek((10 << 30) - 1)
        assert file.read() == b"\0end"
    assert (two / "file").stat().st_blocks < 100
    assert pack(two, 1) == pack(one, 1)
    assert (two / "zeros").read_bytes() == bytes(100_000)


def test_a_named_pipe_is_stored_and_a_socket_left_out(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "1"), folder(tmp_path / "2")
    os.mkfifo(one / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(one / "socket"))
    unpack(pack(one, 1), two)
    assert os.listdir(two) == ["pipe"]


def test_a_folder_that_is_too_large_or_too_deep_has_no_archive(tmp_path: Path) -> None:
    large, deep = folder(tmp_path / "large"), folder(tmp_path / "deep")
    (large / "file").write_bytes(os.urandom(3_000_000))
    subprocess.run(["mkdir", "-p", "/".join(["d" * 200] * 30)], cwd=deep, check=True)
    assert pack(large, 1) is None
    assert pack(deep, 1) is None
    empty(str(deep))


@pytest.mark.parametrize("name", ["/tmp/rolemesh-was-here", "../rolemesh-was-here", "a/../../b"])
def test_a_name_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(AgentError, match="outside of the folder"):
        unpack(made.getvalue(), folder(tmp_path / "1"))


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    one, outside, made = folder(tmp_path / "1"), folder(tmp_path / "2"), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("a/b"))
    with pytest.raises(OSError):
        unpack(made.getvalue(), one)
    assert os.listdir(outside) == []


def test_emptying_removes_trees_that_are_deeper_than_a_path_is_long(tmp_path: Path) -> None:
    one, here = folder(tmp_path / "1"), os.getcwd()
    (one / "closed").mkdir(mode=0)
    os.chdir(one)
    try:
        for _ in range(100):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    empty(str(one))
    assert os.listdir(one) == []
