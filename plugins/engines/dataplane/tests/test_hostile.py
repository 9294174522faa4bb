"""A checkpoint that another user wrote leads its reader nowhere, stops it nowhere, and runs nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError


def written(run_dir: Path, files: dict[str, tuple[int, str]], sizes: dict[str, int] | None = None) -> Path:
    """Write only the manifest of a checkpoint, with a right checksum."""
    step = disk.step_folder(run_dir, 3)
    (step / "trainer").mkdir(parents=True)
    manifest = disk.Manifest("job", "id", 3, 4, sizes or {"trainer": 1}, files)
    (step / disk.MANIFEST).write_bytes(msgspec.json.encode(disk._sealed(manifest)))
    return step


def test_a_name_in_a_manifest_is_no_path_out_of_the_checkpoint(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"SECRET")
    told = (6, hashlib.sha256(b"SECRET").hexdigest())
    names = ("../../../secret", str(secret), "/dev/zero", "trainer/../../../../secret")
    step = written(tmp_path / "run", dict.fromkeys(names, told))
    assert {each.file: each.what for each in disk.verify(step)} == dict.fromkeys(
        names, "it cannot be read: a file's name in a run is no path"
    )


def test_links_and_pipes_of_a_checkpoint_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"SECRET")
    told = (6, hashlib.sha256(b"SECRET").hexdigest())
    step = written(tmp_path / "run", {"trainer/link": told, "trainer/pipe": told, "linked/secret": told})
    (step / "trainer/link").symlink_to(tmp_path / "secret")
    (step / "linked").symlink_to(tmp_path)
    for folder in (step, step / "trainer"):
        folder.chmod(0o777)
    os.mkfifo(step / "trainer/pipe")
    link = "it cannot be read: it is a link, and links in folders of others are not followed"
    told_of = {each.file: each.what for each in disk.verify(step)}
    assert told_of == {
        "trainer/link": link, "linked/secret": link, "trainer/pipe": "it cannot be read: it is no regular file"
    }  # fmt: skip


@pytest.mark.parametrize("how", ["pipe", "link", "sparse"])
def test_a_manifest_that_is_no_usual_file_is_damaged_at_once(tmp_path: Path, how: str) -> None:
    step = written(tmp_path / "run", {})
    manifest = step / disk.MANIFEST
    manifest.replace(tmp_path / "elsewhere")
    step.chmod(0o777)
    if how == "pipe":
        os.mkfifo(manifest)
    elif how == "link":
        manifest.symlink_to(tmp_path / "elsewhere")
    else:
        with open(manifest, "wb") as file:
            file.truncate(20 << 30)
    (found,) = disk.find_checkpoints(tmp_path / "run")
    assert found.manifest is None
    assert "the manifest is damaged" in found.warning


@pytest.mark.parametrize("role", ["../../evil", "/evil", "..", ".hidden", ""])
def test_the_name_of_a_role_is_no_path(tmp_path: Path, role: str) -> None:
    with pytest.raises(SnapshotError, match="the manifest is damaged: no job has a role"):
        disk.read_manifest(written(tmp_path, {}, {role: 1}))


def test_a_huge_world_size_is_damage(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no job has a role 'trainer' of 1000000000 ranks"):
        disk.read_manifest(written(tmp_path, {}, {"trainer": 10**9}))


def test_linked_snapshots_are_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "other", {})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/snapshots").symlink_to("../other/snapshots")
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(SnapshotError, match="the snapshots cannot be read: it is a link"):
        disk.find_checkpoints(tmp_path / "run")


def test_only_folders_with_the_name_of_a_step_are_checkpoints(tmp_path: Path) -> None:
    written(tmp_path, {})
    for name in ("step-٣", "step-03", "step-" + "9" * 200, "step--1"):
        (disk.snapshots_folder(tmp_path) / name).mkdir()
    assert [each.step for each in disk.find_checkpoints(tmp_path)] == [3]
