"""Facts about a plugin without an import of it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.static import looked_at

Install = Callable[..., Path]


def look(name: str) -> PluginRecord:
    [record] = [record for record in discover() if record.name == name]
    return looked_at(record)


def test_a_sound_plugin_stays_available_and_is_not_imported(toy: object) -> None:
    assert look("toy").status == "available"
    assert "toy_plugin" not in sys.modules


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import os\nimport no_such_thing.sub\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("from no_such_thing import x\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("def f(:\n", "SyntaxError"),
        ("class Other: ...\n", "AttributeError: module 'bad_plugin' has no attribute 'Bad'"),
    ],
)
def test_a_plugin_whose_import_must_fail_is_broken(install: Install, source: str, error: str) -> None:
    install("bad", "1.0", {"workloads": {"bad": "bad_plugin:Bad"}}, bad_plugin=source)
    record = look("bad")
    assert record.status == "broken"
    assert error in record.error


def test_a_missing_module_is_broken(install: Install) -> None:
    install("bad", "1.0", {"workloads": {"bad": "gone.deeper:Bad"}})
    assert look("bad").error == "ModuleNotFoundError: No module named 'gone.deeper'"


def test_an_optional_import_does_not_count(install: Install) -> None:
    source = "try:\n    import no_such_thing\nexcept ImportError:\n    pass\nclass Bad: ...\n"
    install("fine", "1.0", {"workloads": {"fine": "fine_plugin:Bad"}}, fine_plugin=source)
    assert look("fine").status == "available"


def test_a_module_that_an_update_removed_is_missing_although_its_folder_is_left(install: Install) -> None:
    site = install("bad", "1.0", {"workloads": {"bad": "bad_package.removed.verb:Bad"}})
    (site / "bad_package" / "removed" / "__pycache__").mkdir(parents=True)
    (site / "bad_package" / "__init__.py").touch()
    assert look("bad").error == "ModuleNotFoundError: No module named 'bad_package.removed.verb'"
    assert "bad_package" not in sys.modules
