"""The check measures the given number of files, and fails with the name of a folder that it cannot write to."""

from pathlib import Path

import pytest
from rolemesh_durable.checks import CheckedNode
from rolemesh_testing import CheckConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(CheckConformance):
    """The tests that every check must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"files": 0}, {"slower": 0.5})


CHECK = {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options(files=3))


def node(folder: Path) -> CheckedNode:
    return CheckedNode("n0", "127.0.0.1", str(folder), "/dev/shm", ("n0",))


def test_it_measures_and_leaves_nothing(tmp_path: Path) -> None:
    assert CHECK.measure(node(tmp_path))["files_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CHECK.measure(node(tmp_path / "nowhere"))
