"""A run's files are read as they are: no link, pipe, device or huge file of it does anything to its reader."""

import os
from pathlib import Path

import pytest

from rolemesh_runtime.run_files import content_in, names_in, open_in


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "logs/reward-0.log").write_text("a line")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    return run


def test_a_file_and_the_names_of_a_folder_are_read(run: Path) -> None:
    assert content_in(run, "logs", "reward-0.log") == b"a line"
    assert (names_in(run), names_in(run, "logs")) == (["logs"], ["reward-0.log"])
    (run.parent / "link").symlink_to(run)
    assert content_in(run.parent / "link", "logs", "reward-0.log") == b"a line"


def test_links_that_another_user_may_have_made_are_not_followed(run: Path) -> None:
    (run / "file").symlink_to("../outside/secret")
    (run / "folder").symlink_to("../outside")
    assert content_in(run, "folder", "secret") == content_in(run, "file") == b"secret"  # its user made them
    run.chmod(0o777)
    for names in (("file",), ("folder", "secret")):
        with pytest.raises(OSError, match="it is a link, and links in folders of others are not followed"):
            content_in(run, *names)
    with pytest.raises(OSError, match="it is a link"):
        names_in(run, "folder")


@pytest.mark.parametrize("name", ["..", ".", "", "../outside/secret", "logs/reward-0.log", "/etc/passwd"])
def test_a_name_is_never_a_path(run: Path, name: str) -> None:
    with pytest.raises(OSError, match="is no path"):
        open_in(run, name)


def test_pipes_devices_and_folders_are_not_opened(run: Path) -> None:
    os.mkfifo(run / "pipe")
    for folder, name in ((run, "pipe"), (run, "logs"), (Path("/dev"), "zero")):
        with pytest.raises(OSError, match="it is no regular file"):
            open_in(folder, name)


def test_a_file_that_is_too_large_is_not_read(run: Path) -> None:
    with open(run / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than 268435456 bytes"):
        content_in(run, "sparse")
    assert content_in(run, "logs", "reward-0.log", most=6) == b"a line"
    with pytest.raises(OSError, match="it has more than 5 bytes"):
        content_in(run, "logs", "reward-0.log", most=5)
