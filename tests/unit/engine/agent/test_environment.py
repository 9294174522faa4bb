"""Environments as agents make them: with real virtual environments and pip, without an index."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from tests.wheels import write_wheel

from rolemesh.errors import BackendError
from rolemesh.plugins.discovery import discover, find
from rolemesh_durable.agent.environment import cache_folder, interpreter
from rolemesh_durable.protocol.job import Environment


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLEMESH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache" / "environments"


def silent(text: str) -> None:
    return None


def said_by(python: str, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_environment_has_its_own_packages_and_all_that_is_installed_here(tmp_path: Path) -> None:
    python = interpreter(Environment((str(write_wheel(tmp_path, "1.0")),)), silent)
    assert said_by(python, "import tiny; print(tiny.VERSION)") == "1.0"
    # Both of this interpreter's: one from its site-packages, one that may be installed in editable mode.
    assert said_by(python, "import msgspec, rolemesh; print(msgspec.__file__, rolemesh.__file__)").split() == [
        msgspec.__file__,
        said_by(sys.executable, "import rolemesh; print(rolemesh.__file__)"),
    ]


def test_pip_looks_where_its_settings_say_and_installs_into_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, away = write_wheel(tmp_path, "1.0").parent, tmp_path / "away"
    (tmp_path / "pip.conf").write_text(
        f"[global]\nfind-links = {wheels}\nprefix = {away}\n[install]\nuser = true\ntarget = {away}\nroot = {away}\n"
    )
    settings = {"CONFIG_FILE": tmp_path / "pip.conf", "TARGET": away, "USER": 1, "PREFIX": away, "DRY_RUN": 1}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    python = interpreter(Environment(("tiny==1.0",)), silent)
    monkeypatch.delenv("PYTHONINSPECT")
    assert said_by(python, "import tiny; print(tiny.__file__)").startswith(str(Path(python).parents[1]))
    assert not away.exists()


def test_its_own_version_goes_before_the_one_that_is_installed_here(tmp_path: Path) -> None:
    python = interpreter(Environment((str(write_wheel(tmp_path, "0.0.1", "humanfriendly-of-nobody")),)), silent)
    assert said_by(python, "import humanfriendly_of_nobody as m; print(m.VERSION)") == "0.0.1"
    python = interpreter(Environment((str(write_wheel(tmp_path, "0.0.1", "msgspec")),)), silent)
    assert said_by(python, "import msgspec; print(msgspec.VERSION)") == "0.0.1"
    assert version("msgspec") != "0.0.1"


def test_two_that_need_the_same_environment_at_once_make_it_once(tmp_path: Path) -> None:
    environment = Environment((str(write_wheel(tmp_path, "1.0")),))
    said: list[str] = []
    found: list[str] = []
    both = [threading.Thread(target=lambda: found.append(interpreter(environment, said.append))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert len(set(found)) == 1
    assert said.count("pip installs what its role needs") == 1


@pytest.mark.soak
def test_a_wheel_with_other_content_is_another_environment(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "1.0")
    first = interpreter(Environment((str(wheel),)), silent)
    write_wheel(tmp_path, "1.0", requires="msgspec")
    second = interpreter(Environment((f"tiny @ file://{wheel}",)), silent)
    assert first != interpreter(Environment((str(wheel),)), silent)
    assert second != first


@pytest.mark.soak
def test_a_half_made_environment_is_made_from_scratch(tmp_path: Path, own_cache: Path) -> None:
    environment = Environment((str(write_wheel(tmp_path, "1.0")),))
    folder = Path(interpreter(environment, silent)).parents[1]
    (folder / ".made").unlink()
    (folder / "leftover").touch()
    interpreter(environment, silent)
    assert not (folder / "leftover").exists()


def test_a_failed_installation_shows_pips_error_and_leaves_nothing(own_cache: Path) -> None:
    with pytest.raises(BackendError) as caught:
        interpreter(Environment(("no-such-package-of-rolemesh==1.0",)), silent)
    assert caught.value.what.startswith("pip ended with exit code 1\n| ")
    assert "No matching distribution found for no-such-package-of-rolemesh==1.0" in caught.value.what
    assert "PIP_INDEX_URL" in (caught.value.remedy or "")
    assert [path.suffix for path in own_cache.iterdir()] == [".lock"]


def test_another_kernel_than_the_agents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"(?s)rolemesh.*conflict"):
        interpreter(Environment((str(write_wheel(tmp_path, "99.0", "rolemesh")),)), silent)


def test_another_version_of_a_plugin_than_the_drivers_is_refused_in_it(tmp_path: Path) -> None:
    record = find("failover", "process", discover())
    python = interpreter(Environment((str(write_wheel(tmp_path, "99.0", record.distribution)),)), silent)
    code = f"""
import msgspec
from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.resolved import load_exact
try:
    load_exact(msgspec.convert({msgspec.to_builtins(record)!r}, PluginRecord))
except PluginError as error:
    print(error.what)
"""
    assert said_by(python, code).endswith(f"{record.distribution} {record.version}, but 99.0 is installed here")


def test_a_role_without_packages_has_the_agents_own_interpreter(own_cache: Path) -> None:
    assert interpreter(Environment((), "/tmp"), silent) == sys.executable
    assert not own_cache.exists()


def test_the_error_for_a_read_only_cache_names_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLEMESH_CACHE", str(tmp_path / "file"))
    with pytest.raises(BackendError) as caught:
        interpreter(Environment(("tiny",)), silent)
    assert str(tmp_path / "file") in caught.value.what
    assert "ROLEMESH_CACHE" in (caught.value.remedy or "")


def test_the_cache_is_the_users_unless_a_variable_names_another() -> None:
    assert cache_folder({}) == Path.home() / ".cache" / "rolemesh"
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/rolemesh")
    assert cache_folder({"XDG_CACHE_HOME": "/c", "ROLEMESH_CACHE": "/r"}) == Path("/r")
