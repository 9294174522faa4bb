"""The checks of `tests.house` find each mistake in small distributions. `make lint` runs them on ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.house import PUBLIC, distributions, private_uses, problems

PROJECT = """\
[project]
name = "{name}"
dependencies = {needs}
"""
LINTER = """
[tool.importlinter]
root_packages = ["rolemesh", "rolemesh_durable", "rolemesh_tea"]

[[tool.importlinter.contracts]]
name = "distributions depend downwards"
type = "layers"
layers = ["rolemesh_tea", "rolemesh_durable", "rolemesh"]

[[tool.importlinter.contracts]]
name = "other distributions import the engine's public modules only"
type = "protected"
protected_modules = ["rolemesh_durable.rank"]
"""
KERNEL = "class Context:\n    _calls = 0\n\n    def __init__(self):\n        self._steps = 0\n"
ENGINE = {f"{name}.py": "" for name in ("rank", *PUBLIC)}
Write = Callable[..., Path]


@pytest.fixture
def house(tmp_path: Path) -> Write:
    """``house(tea=code)``: a kernel, an engine and a plugin with this code, and the contracts of all three."""

    def write(tea: str = "", needs: str = '["rolemesh>=0.1"]', **more: str) -> Path:
        _write(tmp_path, "core/rolemesh", {"__init__.py": KERNEL})
        (tmp_path / "pyproject.toml").write_text(PROJECT.format(name="rolemesh", needs="[]") + LINTER)
        _add(tmp_path, "engines/durable", "rolemesh-durable", ENGINE)
        _add(tmp_path, "observe/tea", "rolemesh-tea", {"__init__.py": "", "cup.py": tea}, needs)
        for name, code in more.items():
            _add(tmp_path, f"observe/{name}", f"rolemesh-{name}", {"__init__.py": code})
        return tmp_path

    return write


def _add(root: Path, where: str, name: str, files: dict[str, str], needs: str = "[]") -> None:
    _write(root / "plugins" / where, f"src/{name.replace('-', '_')}", {"__init__.py": "", **files})
    (root / "plugins" / where / "pyproject.toml").write_text(PROJECT.format(name=name, needs=needs))


def _write(root: Path, folder: str, files: dict[str, str]) -> None:
    (root / folder).mkdir(parents=True)
    for name, code in files.items():
        (root / folder / name).write_text(code)


def test_a_small_house_in_which_nothing_is_wrong_passes(house: Write) -> None:
    assert list(problems(house("from rolemesh import Context\n\n\ndef cup(self):\n    self.full = Context()\n"))) == []


def test_a_new_distribution_must_be_in_the_contracts(house: Write) -> None:
    told = list(problems(house(milk="")))
    assert [each.rpartition(" ")[2] for each in told] == ["rolemesh_milk", "rolemesh_milk"]


def test_a_new_module_of_the_engine_must_be_public_or_protected(house: Write) -> None:
    root = house()
    (root / "plugins/engines/durable/src/rolemesh_durable/kettle.py").write_text("")
    (told,) = problems(root)
    assert told.endswith("differ by rolemesh_durable.kettle")


def test_a_distribution_has_the_name_of_its_folder_or_in_base_that_of_its_kind(house: Write) -> None:
    root = house()
    (root / "plugins/observe/tea").rename(root / "plugins/observe/base")
    (told,) = problems(root)
    assert told.startswith("plugins/observe/base: the name of the distribution is rolemesh-tea ")


def test_a_distribution_must_declare_the_ones_that_it_imports(house: Write) -> None:
    (told,) = problems(house("from rolemesh_durable.api import Cup\n"))
    assert told == "rolemesh_tea.cup imports rolemesh_durable.api, and rolemesh-tea does not depend on rolemesh-durable"


def test_a_folder_of_unit_tests_must_have_its_room_in_the_package(house: Write) -> None:
    root = house()
    _write(root, "core/rolemesh/graph", {"__init__.py": ""})
    _write(root, "tests/unit/kernel/graph", {"test_trace.py": ""})
    _write(root, "tests/unit/engine/kettle", {"test_boil.py": ""})
    (told,) = problems(root)
    assert told.startswith("tests/unit/engine/kettle: rolemesh_durable has no room kettle")


@pytest.mark.parametrize(
    "code",
    [
        "def pour(ctx):\n    return ctx._calls\n",
        "def pour(ctx):\n    ctx._steps = 1\n",
        "def pour(cups):\n    del cups[0].context()._steps\n",
        "def pour(ctx):\n    return getattr(ctx, '_steps')\n",
        "class Cup(Context):\n    def pour(self):\n        return self._steps\n",
        "class Cup(Context):\n    def pour(self):\n        return super()._calls\n",
        "from rolemesh import _calls\n",
        "from rolemesh.cli._output import show\n",
        "import rolemesh._steps\n",
    ],
)
def test_a_private_name_of_another_distribution_is_found(house: Write, code: str) -> None:
    (found,) = private_uses(distributions(house(code)))
    assert (found.module, found.name in ("_calls", "_steps", "_output")) == ("rolemesh_tea.cup", True)


@pytest.mark.parametrize(
    "code",
    [
        "import os\n\nos._exit(0)\n",  # no distribution of ours defines it
        "def pour(ctx):\n    return ctx.__dict__\n",
        "class Cup:\n    _steps = 0\n\n\ndef pour(cup):\n    return cup._steps\n",  # this module defines it, too
    ],
)
def test_private_names_of_the_own_module_and_of_strangers_are_left_alone(house: Write, code: str) -> None:
    assert list(private_uses(distributions(house(code)))) == []


def test_a_name_that_two_distributions_define_is_accessed_where_it_is_defined(house: Write) -> None:
    """The type of the object is not known: in another module it might be the other distribution's."""
    root = house("def pour(cup):\n    return cup._steps\n")
    (root / "plugins/observe/tea/src/rolemesh_tea/__init__.py").write_text("class Cup:\n    _steps = 0\n")
    (found,) = private_uses(distributions(root))
    assert found.name == "_steps"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def read(path):\n    return path.read_bytes()", "path.read_bytes()"),
        ("def read(path):\n    return open(path)", "open(path)"),
        ("def read(path):\n    return path.open('rb')", "path.open('rb')"),
        ("import os\ndef read(path):\n    return os.open(path, os.O_RDONLY)", "os.open(path, os.O_RDONLY)"),
        ("import sqlite3\ndef read(path):\n    return sqlite3.connect(path)", "sqlite3.connect(path)"),
        ("def read(path):\n    return list(path.iterdir())", "path.iterdir()"),
        ("def write(path):\n    return open(path, 'wb')", ""),
    ],
)
def test_a_verb_that_opens_a_file_of_a_run_otherwise_is_found(house: Write, code: str, found: str) -> None:
    told = [each for each in problems(house(jobs=code)) if "opens what may be another user's" in each]
    assert [each.split(": ")[1].split(" opens")[0] for each in told] == [found] * bool(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("subprocess.run(['tea'], timeout=60)", "tests/test_tea.py:1"),
        ("out, _ = process.communicate(timeout=60)", "tests/test_tea.py:1"),
        ("subprocess.run(['tea'])", ""),
        ("assert ready.wait(60)", "tests/test_tea.py:1"),
        ("async def test_tea():\n    async with asyncio.timeout(10):\n        await tea()", "tests/test_tea.py:2"),
        ("urlopen('http://tea', timeout=10.0)", "tests/test_tea.py:1"),
        ("assert ready.wait(HANG_S)", ""),
        ("assert not ready.wait(0.05)", ""),
        ("pool.acquire(40_000)", ""),
        ("pytestmark = pytest.mark.timeout(600)", ""),
        ("with pytest.raises(subprocess.TimeoutExpired):\n    subprocess.run(['tea'], timeout=1)", ""),
    ],
)
def test_a_test_that_gives_up_after_some_seconds_is_found(house: Write, code: str, found: str) -> None:
    _write(root := house(), "tests", {"test_tea.py": code})
    assert [each.split(": ")[0] for each in problems(root)] == [found] * bool(found)
