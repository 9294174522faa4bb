"""Files that verbs write: whole, as private as the umask says, and never through somebody else's link."""

import os
import stat
from pathlib import Path

import pytest

from rolemesh_facts.output import replaced


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_the_umask_decides_who_may_read_a_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with replaced(tmp_path / "out") as partial:
            partial.write_text("text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_is_followed_in_a_folder_of_ones_own_only(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    (target := tmp_path / "authorized_keys").write_text("mine")
    (folder / "out").symlink_to(target)
    folder.chmod(0o777)
    with pytest.raises(OSError, match="it is a link"), replaced(folder / "out") as partial:
        partial.write_text("theirs")
    assert target.read_text() == "mine"
    folder.chmod(0o755)
    with replaced(folder / "out") as partial:
        partial.write_text("mine again")
    assert target.read_text() == "mine again"
