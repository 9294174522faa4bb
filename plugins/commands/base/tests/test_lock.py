"""A locked job runs with the plugins that were locked, or not at all."""

from __future__ import annotations

import py_compile
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.content import check_content, content_hash
from rolemesh_durable.resolved import load_exact
from rolemesh_lock import lock_file, locked, read_lock

RECORD = PluginRecord("workloads", "mine", "mine-dist", "1.0", "minepkg.deep:Mine")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site" / "minepkg"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    (folder / "deep.py").write_text("class Mine: ...\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    assert "minepkg" not in sys.modules


def test_the_hash_is_of_names_and_contents_and_imports_nothing(package: Path) -> None:
    before = content_hash(RECORD)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "deep.pyc").write_bytes(b"compiled")
    assert content_hash(RECORD) == before
    (package / "data.bin").write_bytes(b"")
    assert content_hash(RECORD) != before
    (package / "data.bin").unlink()
    (package / "deep.py").write_text("class Mine: ....\n")
    assert content_hash(RECORD) != before


def test_the_hash_of_a_package_in_a_zip_is_that_of_the_zip(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", package.parent)
    shutil.rmtree(package)
    monkeypatch.syspath_prepend(packed)
    before = content_hash(RECORD)
    with zipfile.ZipFile(packed, "a") as more:
        more.writestr("minepkg/more.py", "a = 1\n")
    assert content_hash(RECORD) != before


def test_a_link_in_the_package_counts_and_code_that_nobody_compares_with_its_source_is_refused(
    package: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.py").write_text("a = 1\n")
    (package / "linked").symlink_to(tmp_path / "elsewhere")
    (package / "again").symlink_to(package)
    before = content_hash(RECORD)
    (tmp_path / "elsewhere" / "linked.py").write_text("a = 2\n")
    assert content_hash(RECORD) != before
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(package / "deep.py"), invalidation_mode=unchecked)
    with pytest.raises(PluginError, match="does not compare with its source"):
        content_hash(RECORD)


def test_a_locked_job_passes_and_carries_its_hash_to_other_processes(package: Path, tmp_path: Path) -> None:
    path = lock_file(tmp_path / "job.yaml")
    assert path.name == "job.lock.yaml"
    path.write_text(locked("job.yaml", [RECORD]))
    found = read_lock(path).checked(RECORD, None)
    assert found.sha256 == content_hash(RECORD)
    check_content(found)
    (package / "deep.py").write_text("class Other: ...\n")
    with pytest.raises(PluginError, match=r"'mine' \(mine-dist 1\.0\) has another content here than the lock says"):
        check_content(found)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"name": "yours"}, "is not in the lock"),
        ({"kind": "schedulers"}, "is not in the lock"),
        ({"version": "1.1"}, "is locked to mine-dist 1.0"),
        ({"distribution": "evil-dist"}, "is locked to mine-dist 1.0"),
    ],
)
def test_anything_else_is_refused(package: Path, tmp_path: Path, other: dict[str, str], why: str) -> None:
    path = tmp_path / "job.lock.yaml"
    path.write_text(locked("job.yaml", [RECORD]))
    fields = {"kind": "workloads", "name": "mine", "distribution": "mine-dist", "version": "1.0"} | other
    record = PluginRecord(**fields, target=RECORD.target)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=why):
        read_lock(path).checked(record, "job.yaml:3: roles.a.use")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no lock"),
        ("rolemesh: [", "the lock cannot be read"),
        ("plugins: []", "missing required field `rolemesh`"),
        ("rolemesh: '1'\nplugins: []\nmore: 1\n", "unknown field `more`"),
    ],
)
def test_a_missing_or_damaged_lock_is_an_error(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "job.lock.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PluginError, match=why):
        read_lock(path)


def test_a_lock_of_another_kernel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.lock.yaml"
    path.write_text("rolemesh: 99.0\nplugins: []\n".replace("99.0", "'99.0'"))
    with pytest.raises(PluginError, match=r"locked to rolemesh 99\.0"):
        read_lock(path).check_kernel(str(path))


def test_a_process_that_resolves_nothing_itself_checks_the_hash_before_it_imports() -> None:
    from rolemesh.plugins.discovery import discover, find

    record = find("schedulers", "pack", discover())
    import msgspec

    wrong = msgspec.structs.replace(record, sha256="0" * 64)
    with pytest.raises(PluginError, match="another content here"):
        load_exact(wrong)


def test_through_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "roles.py").write_text("def make(ctx) -> float:\n    return 1.0\n")
    (tmp_path / "flow.py").write_text("from rolemesh import flow\n\n\n@flow\ndef one(job):\n    job.a.make()\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: locked\nflow: flow.py:one\nsteps: 2\nroles:\n"
        "  a: {use: function, options: {target: 'roles.py:make', returns: split}}\n"
    )

    def cli(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rolemesh.cli", *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    without = cli("run", "job.yaml", "--engine=inline", "--locked")
    assert without.returncode == 2
    assert "there is no lock" in without.stderr
    made = cli("plugins", "lock", "job.yaml")
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "job.lock.yaml").read_text()
    assert "name: function" in text
    assert cli("run", "job.yaml", "--engine=inline", "--locked").returncode == 0
    other = cli(
        "run",
        "job.yaml",
        "--engine=inline",
        "--locked",
        "placement.use=collocation",
        "placement.options.groups=[[a, a]]",
    )
    assert other.returncode == 2
    assert "'collocation' (rolemesh-collocation 0.1.0) is not in the lock" in other.stderr
    (tmp_path / "job.lock.yaml").write_text(text.replace("sha256: ", "sha256: 00", 1))
    refused = cli("run", "job.yaml", "--engine=inline", "--locked")
    assert refused.returncode == 2
    assert "has another content here than the lock says" in refused.stderr
