"""The sandbox `container`: whose files commands see, where images come from, and what a task's image does."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.waiting import until

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_container import ContainerOptions, ContainerSandbox
from rolemesh_testing import SandboxConformance

PROGRAMS = (
    *("sh", "bash", "cat", "ls", "touch", "id", "sleep", "mkdir", "rm", "ln", "chmod", "seq", "yes", "dd", "true"),
    *("false", "head", "echo", "env", "mount", "unshare", "ps", "kill", "wc", "sort", "tail", "grep"),
)


def root_file_system(folder: Path, *, python: bool) -> Path:
    """Copy programs of this machine with their libraries, and a repository in ``/repo``."""
    programs = {f"/bin/{name}": os.path.realpath(shutil.which(name) or "") for name in PROGRAMS if shutil.which(name)}
    if python:
        programs[f"{sys.base_prefix}/bin/python3"] = os.path.realpath(sys.executable)
        library = sysconfig.get_path("stdlib")
        left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__", "idlelib", "ensurepip", "config-*")
        shutil.copytree(library, folder / library.removeprefix("/"), ignore=left_out)
    for target, source in programs.items():
        told = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for each, place in [(source, target), *((word, word) for word in told.split() if word.startswith("/"))]:
            copy = folder / place.removeprefix("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, copy)
    (folder / "repo").mkdir()
    (folder / "repo/code.py").write_text("print('of the image')\n")
    (folder / "repo/link").symlink_to("/etc/passwd")
    (folder / "large").mkdir()
    (folder / "large/file").write_bytes(os.urandom(2_000_000))
    return folder


class TestContainer(SandboxConformance):
    """With an image that is made from the files of this machine."""

    plugin = "container"
    options: ClassVar[dict[str, Any]] = {"image": "/nowhere"}
    bad_options = ({"image": 1}, {"image": "a", "engine": 1})

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def image(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = root_file_system(tmp_path_factory.mktemp("image"), python=True)
        path = {"PATH": f"{sys.base_prefix}/bin:/bin"}
        cls.options = {"image": str(root), "env": path, "folder": "/workspace"}

    def test_a_command_has_names_and_terminals_of_its_own(self, open_sandbox: Callable[..., Any]) -> None:
        program = (
            "import os, pty, socket; print(socket.gethostbyname(socket.gethostname()), os.isatty(pty.openpty()[1]))"
        )
        assert self.run_python(open_sandbox(), program).output == "127.0.0.1 True\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return root_file_system(tmp_path_factory.mktemp("root"), python=False)


def opened(place: Path, image: object, limits: Limits | None = None, **options: str) -> ContainerSandbox:
    place.mkdir()
    made = ContainerSandbox(ContainerOptions(image=str(image), **options))
    try:
        made.open(place, limits or Limits())
    except AgentError as error:
        if "the kernel" in str(error) or "Operation not permitted" in str(error):
            pytest.skip(str(error))
        raise
    return made


@pytest.fixture
def sandbox(tmp_path: Path, root: Path) -> Iterator[ContainerSandbox]:
    made = opened(tmp_path / "folder", root, folder="/repo")
    yield made
    made.close()


def test_commands_see_the_files_of_the_image_and_none_of_the_machine(sandbox: ContainerSandbox) -> None:
    found = set(sandbox.run("ls /").output.split())
    assert {"bin", "proc", "dev", "tmp", "repo"} <= found
    assert not found & {"home", "root", "srv"}
    assert sandbox.run("ls /etc").output.split() == ["hostname", "hosts"], "as docker writes them"
    assert sandbox.run("cat link").code != 0
    assert sandbox.run("touch /bin/file").code != 0


def test_the_folder_begins_as_in_the_image_and_keeps_changes(sandbox: ContainerSandbox, root: Path) -> None:
    assert sandbox.run("cat code.py; echo new > more; echo changed > code.py").output == "print('of the image')\n"
    assert sandbox.run("cat code.py more").output == "changed\nnew\n"
    assert (root / "repo/code.py").read_text() == "print('of the image')\n"
    assert sorted(os.listdir(root / "repo")) == ["code.py", "link"]


def test_a_snapshot_restores_what_was_removed_too(sandbox: ContainerSandbox, tmp_path: Path, root: Path) -> None:
    sandbox.run("echo new > more; : > code.py; mkdir sub")
    state = sandbox.snapshot()
    assert state is not None
    other = opened(tmp_path / "other", root, folder="/repo")
    try:
        other.restore(state)
        assert other.run("ls; cat code.py more").output == "code.py\nlink\nmore\nsub\nnew\n"
    finally:
        other.close()


def test_a_task_may_have_an_image_of_its_own(tmp_path: Path, root: Path) -> None:
    (tmp_path / "folder").mkdir()
    made = ContainerSandbox(ContainerOptions(image=str(root.with_name("other")), folder="/repo"))
    made.use_image(str(root))
    made.open(tmp_path / "folder", Limits())
    try:
        assert made.run("cat code.py").output == "print('of the image')\n"
    finally:
        made.close()


@pytest.mark.parametrize("option", ["debian:12", "/srv/images/base"])
def test_a_task_cannot_choose_what_commands_see_of_the_machine(tmp_path: Path, root: Path, option: str) -> None:
    made = ContainerSandbox(ContainerOptions(image=option))
    for place in ("/usr", str(root), f"{root}/../../usr"):
        made.use_image(place)
        with pytest.raises(AgentError, match="is a folder of this machine") as caught:
            made.open(tmp_path, Limits())
        assert caught.value.where == place


def test_a_folder_that_is_too_large_is_refused_with_the_limit(tmp_path: Path, root: Path) -> None:
    with pytest.raises(AgentError, match="more than 1 MB in /large"):
        opened(tmp_path / "folder", root, Limits(disk_mb=1), folder="/large")


def test_a_folder_behind_a_link_is_refused(tmp_path: Path, root: Path) -> None:
    (image := tmp_path / "image").mkdir()
    shutil.copytree(root, image, symlinks=True, dirs_exist_ok=True)
    (image / "way").symlink_to("/etc")
    with pytest.raises(AgentError, match="leads over a symbolic link in the image"):
        opened(tmp_path / "folder", image, folder="/way")


def test_without_an_engine_the_error_names_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="neither podman nor docker is on the path") as caught:
        opened(tmp_path / "folder", "debian:12")
    assert "apt install podman" in str(caught.value)


ENGINE = """#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
image) echo '[{"Id": "sha256:0123456789abcdef", "Config": {"WorkingDir": "/repo"}}]' ;;
export) head -c 20000 image.tar; [ -e hold ] && { touch holding; read line < hold; }; tail -c +20001 image.tar ;;
esac
"""
UNPACK = """
import sys
from pathlib import Path
from rolemesh_sandbox_container.images import find_image

print(find_image("image", sys.argv[1], Path(sys.argv[2])).root)
"""


@pytest.fixture
def engine(tmp_path: Path, root: Path) -> Path:
    """A program that has an image as podman has it, and holds its export while it can read ``hold``."""
    (folder := tmp_path / "engine").mkdir()
    subprocess.run(["tar", "-c", "-f", folder / "image.tar", "-C", root, "."], check=True)
    (folder / "engine").write_text(ENGINE)
    (folder / "engine").chmod(0o755)
    return folder / "engine"


def test_the_files_of_a_killed_unpacker_are_removed_when_nothing_writes_there(
    tmp_path: Path, root: Path, engine: Path
) -> None:
    cache, hold = tmp_path / "cache", engine.with_name("hold")
    os.mkfifo(hold)
    command = [sys.executable, "-c", UNPACK, engine, cache]
    with subprocess.Popen(command) as killed:
        until(engine.with_name("holding").exists, "half of the image has been exported")
        killed.kill()
    with open(cache / "0123456789abcdef.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second:
        go_on = hold.open("w")
        hold.unlink()
        go_on.close()
        said, _ = second.communicate()
    assert said.strip() == str(cache / "0123456789abcdef")
    assert sorted(os.listdir(cache)) == ["0123456789abcdef", "0123456789abcdef.lock"]
    assert compared(root, Path(said.strip())) == []


def compared(left: Path, right: Path) -> list[str]:
    """The differences of two trees, without ``dev``."""
    command = ["diff", "--recursive", "--no-dereference", "--brief", "--exclude=dev", left, right]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


SMALL_DISK = """
mount -t tmpfs -o size=100m tmpfs "$3"
fallocate -l 99m "$3/other"
"$1" -c "$0" "$2" "$3" 2>&1 || true
echo and then
rm "$3/other"
ls "$3"
"$1" -c "$0" "$2" "$3"
ls "$3"
"""


def test_an_image_that_the_disk_has_no_room_for_leaves_nothing_and_comes_once_there_is_room(
    tmp_path: Path, engine: Path
) -> None:
    (cache := tmp_path / "cache").mkdir()
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the kernel refuses namespaces")
    command = [*own, "sh", "-ec", SMALL_DISK, UNPACK, sys.executable, engine, cache]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused, _, rest = done.stdout.partition("and then\n")
    assert "the image image cannot be unpacked: " in refused, done
    assert "No space left on device" in refused
    assert "make room there, or set XDG_CACHE_HOME to another place" in refused
    root = "0123456789abcdef"
    assert rest.split() == [f"{root}.lock", str(cache / root), root, f"{root}.lock"]


@pytest.mark.more
@pytest.mark.skipif(shutil.which("podman") is None, reason="needs podman")
def test_podman_fetches_an_image_once_and_its_settings_count(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    name = f"localhost/rolemesh-test-{os.getpid()}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tempfile.mkdtemp(prefix="run-")  # podman allows 50 characters
    request.addfinalizer(lambda: shutil.rmtree(run, ignore_errors=True))
    podman = ["podman", "--root", str(tmp_path / "storage"), "--runroot", run, "--storage-driver=vfs"]
    (engine := tmp_path / "engine").write_text(f'#!/bin/sh\nexec {" ".join(podman)} "$@"\n')
    engine.chmod(0o755)
    tar = subprocess.run(["tar", "-c", "-C", str(root), "."], capture_output=True, check=True).stdout
    changes = ["--change", "WORKDIR /repo", "--change", "ENV GREETING=hello"]
    made = subprocess.run([*podman, "import", *changes, "-", name], input=tar, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    for number in range(2):
        made = opened(tmp_path / f"folder-{number}", name, engine=str(engine))
        try:
            assert made.run("cat code.py; echo $GREETING").output == "print('of the image')\nhello\n"
        finally:
            made.close()
    unpacked, lock = sorted((tmp_path / "cache/rolemesh/images").iterdir())
    assert (unpacked.is_dir(), lock.suffix) == (True, ".lock")
    left = subprocess.run([*podman, "ps", "--all", "--quiet"], capture_output=True, text=True, check=True).stdout
    assert left == ""
    for number, none in enumerate(("localhost/there-is-none", "--help")):
        with pytest.raises(AgentError, match="failed"):
            opened(tmp_path / f"none-{number}", none, engine=str(engine))
